"""Where an installation finds its recipes and templates: in a checkout, or in its wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from builder.checks.simulated import COMPILED, SOURCES
from builder.core.errors import RecipeError
from builder.core.farm import farm_root, folder, installed
from support.environment import REPOSITORY

NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "BUILDER_DEBIAN_ROOT": "mmdebstrap"}


def run(
    *command: str | Path, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
    )


def names_in(path: Path) -> set[str]:
    files = path.iterdir() if path.is_dir() else [path]
    return {file.name for file in files if file.is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from this repository."""
    folder = tmp_path_factory.mktemp("wheel")
    hatchling = (sys.executable, "-m", "hatchling", "build", "--target", "wheel")
    done = run(*hatchling, "--directory", folder, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture
def python(wheel: Path, tmp_path: Path) -> Path:
    """An environment elsewhere that has the wheel, and this one's libraries below it.

    A .pth file adds a directory without reading the .pth files in it, among them the one by which
    this environment finds the checkout.
    """
    venv = tmp_path / "venv"
    done = run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    python = venv / "bin" / "python"
    (packages,) = venv.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)  # PEP 427: unpacking installs a pure wheel
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = run(python, "-c", "import builder; print(builder.__file__)", cwd=tmp_path)
    assert Path(found.stdout.strip()).is_relative_to(packages), found.stderr
    return python


def test_an_installed_wheel_has_its_own_recipes_and_templates(python: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    listed = run(python, "-m", "builder", "list", "--json", cwd=elsewhere, environment=NO_ENGINE)
    assert listed.returncode == 0, listed.stderr
    names = {recipe["name"] for recipe in json.loads(listed.stdout)["recipes"]}
    assert names == {file.stem for file in (REPOSITORY / "recipes").glob("*.toml")}

    show = ("-m", "builder", "show", "hello-sm120", "--json")
    shown = run(python, *show, cwd=elsewhere, environment=NO_ENGINE)
    assert shown.returncode == 0, shown.stderr
    there = json.loads(shown.stdout)
    assert Path(there["file"]).is_relative_to(python.parents[1])
    (carried,) = python.parents[1].glob("lib/*/*/builder/_data")
    for place in ("cards", "presets", "shapes", "shapes/tensors", "shapes/tiny"):
        names = {file.name for file in (carried / place).glob("*.toml")}
        assert names == {file.name for file in (REPOSITORY / place).glob("*.toml")}
    for part in COMPILED:
        assert names_in(carried / SOURCES / part) == names_in(REPOSITORY / SOURCES / part)
    site = run(python, "-m", "builder", "site", "--output", "out", "--offline", cwd=elsewhere)
    assert site.returncode == 0, site.stderr
    assert (elsewhere / "out" / "site.css").is_file()
    here = run(sys.executable, *show, cwd=REPOSITORY, environment=NO_ENGINE)
    checkout = json.loads(here.stdout)
    assert Path(checkout["file"]).is_relative_to(REPOSITORY)
    assert there["key"] == checkout["key"]


def test_an_installed_wheel_takes_the_checkout_that_it_runs_in(
    python: Path, tmp_path: Path
) -> None:
    farm = tmp_path / "farm"
    (farm / "recipes" / "bases").mkdir(parents=True)
    (farm / "deep" / "below").mkdir(parents=True)
    command = (python, "-m", "builder", "list", "--json")
    found = run(*command, cwd=farm / "deep" / "below")
    assert json.loads(found.stdout)["recipes"] == []
    named = run(*command, cwd=tmp_path, environment={"BUILDER_CATALOG": str(farm)})
    assert json.loads(named.stdout)["recipes"] == []


def test_the_farm_that_is_named_wins(tmp_path: Path) -> None:
    assert farm_root(tmp_path) == tmp_path


def test_without_one_around_the_installed_farm_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.chdir(tmp_path)
        assert farm_root() == installed() == REPOSITORY
        (tmp_path / "package").mkdir()
        patched.setattr("builder.core.farm.PACKAGE", tmp_path / "package")
        with pytest.raises(RecipeError, match="has no recipes/ directory"):
            farm_root()


def test_a_catalog_without_templates_takes_the_installed_ones(tmp_path: Path) -> None:
    assert folder(tmp_path, "dockerfiles") == REPOSITORY / "dockerfiles"
    (tmp_path / "dockerfiles").mkdir()
    assert folder(tmp_path, "dockerfiles") == tmp_path / "dockerfiles"
