"""The key: everything that decides the image changes it, and nothing else does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder import trees
from builder.dockerfile import render
from builder.errors import FetchError
from builder.plan import RegistryRoot, plan
from builder.platforms import Platforms
from catalogues import AMD64, load, mmdebstrap, rendered
from conftest import REPOSITORY

NAME = "hello-sm120-0.1.0"


@pytest.fixture
def root(catalogue: Path) -> Path:
    shutil.copytree(REPOSITORY / "engines", catalogue / "engines")
    shutil.copy(REPOSITORY / "recipes" / f"{NAME}.toml", catalogue / "recipes")
    return catalogue


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        file = root / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return change


RECIPE = f"recipes/{NAME}.toml"
BASE = "recipes/bases/cuda-13.0.toml"


@pytest.mark.parametrize(
    "change",
    [
        replaced("engines/hello-sm120/src/model.cpp", "\n", "\n\n"),
        lambda root: (root / "engines/hello-sm120/CMakeLists.txt").chmod(0o755),
        lambda root: (root / "engines/hello-sm120/new").touch(),
        replaced(RECIPE, "HELLO_BUILD_NUMBER = 1", "HELLO_BUILD_NUMBER = 2"),
        replaced(RECIPE, 'arch = ["120"]', 'arch = ["120a"]'),
        replaced(RECIPE, 'summary = "', 'summary = "Behold: '),
        replaced(RECIPE, "port       = 8080", "port       = 8081"),
        replaced(BASE, '"13.0.88"', '"13.0.89"'),
        replaced(BASE, 'sha256.amd64 = "5', 'sha256.amd64 = "6'),
        replaced(BASE, '"libgomp1"', '"libgomp1", "curl"'),
        replaced("recipes/bases/debian-trixie.toml", "2026-11-20", "2026-11-21"),
    ],
)
def test_what_decides_the_image_changes_the_key(root: Path, change: Callable[[Path], None]) -> None:
    before = rendered(root, NAME).key
    change(root)
    assert rendered(root, NAME).key != before


@pytest.mark.parametrize(
    "change",
    [
        replaced(RECIPE, 'tags       = ["0.1.0"]', 'tags       = ["0.1.0", "latest"]'),
        replaced(RECIPE, 'says = ["version: 1', 'says = ["Version: 1'),
        replaced(RECIPE, "disk = 3.0", "disk = 4.0"),
        replaced(RECIPE, "[cuda]", "# a comment\n[cuda]"),
        lambda root: (root / "engines/hello-sm120/__pycache__").mkdir(),
        lambda root: os.utime(root / "engines/hello-sm120/CMakeLists.txt", (1, 1)),
    ],
)
def test_what_does_not_decide_the_image_leaves_the_key(
    root: Path, change: Callable[[Path], None]
) -> None:
    before = rendered(root, NAME).key
    change(root)
    assert rendered(root, NAME).key == before


def test_platform_and_root_are_part_of_the_key(root: Path) -> None:
    found = load(root)
    entry = found.engine(NAME)
    bootstrapped = mmdebstrap(found)
    registry = RegistryRoot("debian:trixie-slim", "sha256:" + "1" * 64)
    keys = {
        render(plan(found, entry, AMD64, bootstrapped)).key,
        render(plan(found, entry, Platforms("arm64"), bootstrapped)).key,
        render(plan(found, entry, AMD64, registry)).key,
        render(plan(found, entry, AMD64, replace(registry, digest="sha256:" + "2" * 64))).key,
    }
    assert len(keys) == 4


def test_a_script_of_the_stages_is_part_of_the_key(root: Path) -> None:
    found = load(root)
    planned = plan(found, found.engine(NAME), AMD64, mmdebstrap(found))
    other = replace(planned, scripts={"jobs": "0" * 64})
    assert render(planned).key != render(other).key


def test_a_tree_may_not_lead_out_of_itself(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "up").symlink_to("../b")
    trees.identity(tree)
    for target in ("../../out", "/etc/passwd"):
        (tree / "link").symlink_to(target)
        with pytest.raises(FetchError, match="outside its tree"):
            trees.identity(tree)
        (tree / "link").unlink()
    os.mkfifo(tree / "pipe")
    with pytest.raises(FetchError, match="neither a file nor a link"):
        trees.identity(tree)
    with pytest.raises(FetchError, match="there is no source tree"):
        trees.identity(tmp_path / "nowhere")
