"""`clean`: which images go, which stay, and why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from support.commands import Builder
from support.environment import REPOSITORY
from support.smoke_tests import docker

# One after the other: Docker answers two questions for its disk usage with one list, which may
# be older than the images of the second (moby, daemon/disk_usage.go).
pytestmark = [
    pytest.mark.docker,
    pytest.mark.xdist_group("clean"),
    pytest.mark.usefixtures("own_cache", "engine"),
]
OLD = "0123456789ab"

Made = Callable[..., str]


@pytest.fixture
def named() -> str:
    """The name of an engine that no other test has."""
    return f"clean{uuid4().hex[:8]}"


@pytest.fixture
def farm(catalog: Path, named: str) -> Path:
    """A catalog whose only recipe is hello-sm120's under that name."""
    text = (REPOSITORY / "recipes/hello-sm120-0.1.0.toml").read_text()
    text = text.replace('engine  = "hello-sm120"', f'engine  = "{named}"')
    text = text.replace('repository = "hello-sm120"', f'repository = "{named}"')
    assert text.count(named) == 2
    (catalog / "recipes" / f"{named}-0.1.0.toml").write_text(text)
    shutil.copytree(REPOSITORY / "engines/hello-sm120", catalog / "engines/hello-sm120")
    return catalog


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """Makes an image with these names and labels, and gives its digest; all are removed."""
    names: list[str] = []

    def make(*references: str, **labels: str) -> str:
        file = tmp_path / f"{len(names)}-{uuid4().hex}"
        file.write_text(uuid4().hex)
        tar = subprocess.run(
            ["tar", "-C", tmp_path, "-c", file.name], capture_output=True, check=True
        ).stdout
        changes = [f"--change=LABEL builder.{name}={value}" for name, value in labels.items()]
        command = ["docker", "import", *changes, "-", references[0]]
        done = subprocess.run(command, input=tar, capture_output=True, check=True)
        for other in references[1:]:
            docker("tag", references[0], other)
        names.extend(references)
        return done.stdout.decode().strip()

    yield make
    for name in names:
        subprocess.run(["docker", "image", "rm", name], capture_output=True, check=False)


def rows(text: str) -> dict[str, list[str]]:
    return {row["name"]: [*row["things"]] for row in json.loads(text)["rows"]}


def images(named: str) -> set[str]:
    form = "{{.Repository}}:{{.Tag}}"
    return set(docker("image", "ls", "--format", form, f"*{named}*").split())


def test_only_images_that_nothing_needs_are_removed(
    builder: Builder, farm: Path, named: str, made: Made
) -> None:
    recipe, catalog = f"{named}-0.1.0", ("--catalog", str(farm))
    key = json.loads(builder("show", recipe, "--json", *catalog).stdout)["key"]
    theirs = {"recipe": recipe, "key": f"{OLD}{'0' * 52}"}
    made(f"{named}:0.1.0-{key[:12]}", recipe=recipe, key=key)  # today's
    made(f"{named}:unverified-{key[:12]}", recipe=recipe, key=key)
    made(f"{named}:0.1.0-{OLD}", f"{named}:0.1.0", **theirs)  # of a tag
    made(f"{named}:mine-{OLD}", **theirs)
    docker("create", "--name", named, f"{named}:mine-{OLD}", "/none")  # of a container
    made(f"{named}:unverified-{OLD}", **theirs)
    made(f"{named}:old-{OLD}", **theirs)
    made(f"{named}-of-nobody:1-{OLD}", recipe=f"{named}-gone-1", key=theirs["key"])
    try:
        found = rows(builder("clean", "--json", *catalog).stdout)
        old = {f"{named}:old-{OLD}", f"{named}:unverified-{OLD}"}
        assert old == {each for each in found["images"] if named in each}
        assert f"{named}-of-nobody:1-{OLD}" in found["gone"]
        mine = {name for each in found["needed"] if named in each for name in each.split()}
        stay = images(named) - old
        assert mine == stay - {f"{named}-of-nobody:1-{OLD}"}
        shown = builder("clean", "images", *catalog)
        assert f"{named}:old-{OLD}" in shown.stdout
        assert "nothing is removed: --yes removes it" in shown.stderr
        assert builder("clean", "images", "--yes", "--dry-run", *catalog).returncode == 0
        assert images(named) == stay | old
        done = builder("clean", "images", "--yes", *catalog)
        assert done.returncode == 0, done.stderr
        assert images(named) == stay
    finally:
        docker("rm", "--force", named)
    done = builder("clean", "images", "--yes", *catalog)
    assert images(named) == stay - {f"{named}:mine-{OLD}"}, done.stderr


def test_bases_of_earlier_states_are_found(
    builder: Builder, farm: Path, named: str, made: Made
) -> None:
    plan = json.loads(builder("show", f"{named}-0.1.0", "--json", "--catalog", farm).stdout)
    today = f"builder-base/cuda-13.0:devel-{plan['base']['key'][:12]}"
    old, other = f"builder-base/cuda-13.0:{named}-{OLD}", f"builder-base/{named}:devel-{OLD}"
    made(old, base="cuda-13.0", key=f"{OLD}{'1' * 52}")
    made(other, base=named, key=f"{OLD}{'1' * 52}")
    again = f"builder-reproduce/{named}:image-{OLD}"
    made(again, recipe=f"{named}-0.1.0", key=f"{OLD}{'1' * 52}")
    found = rows(builder("clean", "--json", "--catalog", farm).stdout)
    assert {old, other} <= {*found["bases"]}
    assert again in found["reproduced"]
    assert today not in found["bases"]


def test_an_image_that_is_used_meanwhile_stays_and_is_told(
    builder: Builder, farm: Path, named: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user starts a container of the image between the question and the removal."""
    name = f"{named}:old-{OLD}"
    made(name, recipe=f"{named}-0.1.0", key=f"{OLD}{'0' * 52}")
    folder = farm / "bin"
    folder.mkdir()
    real = shutil.which("docker")
    (folder / "docker").write_text(
        f'#!/bin/sh\ncase "$1 $2" in "image rm"|"image remove") '
        f"{real} create --name {named} {name} /none >/dev/null;; esac\n"
        f'exec {real} "$@"\n'
    )
    (folder / "docker").chmod(0o755)
    try:
        with monkeypatch.context() as meanwhile:
            meanwhile.setenv("PATH", f"{folder}:{os.environ['PATH']}")
            done = builder("clean", "images", "--yes", "--catalog", farm)
        assert done.returncode == 4
        assert f"stays: {name}: " in done.stderr
        assert name in images(named)
    finally:
        docker("rm", "--force", named)
