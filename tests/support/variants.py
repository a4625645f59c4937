"""A copy of hello-sm120 to be bent; a plugin of pytest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.environment import REPOSITORY
from support.smoke_tests import docker

REPOSITORY_NAME = "builder-test/variant"


PATIENCE = 240  # seconds until a build has begun to compile


def labels(image: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(
        docker("image", "inspect", "--format={{json .Config.Labels}}", image)
    )
    return found


@pytest.fixture
def variant(catalog: Path) -> Iterator[Path]:
    """A catalog whose only engine, ``variant``, is a copy of hello-sm120 to be bent."""
    shutil.copytree(REPOSITORY / "engines" / "hello-sm120", catalog / "engines" / "variant")
    text = (REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml").read_text()
    text = text.replace('engine  = "hello-sm120"', 'engine  = "variant"')
    text = text.replace("engines/hello-sm120", "engines/variant")
    text = text.replace('repository = "hello-sm120"', f'repository = "{REPOSITORY_NAME}"')
    (catalog / "recipes" / "variant-0.1.0.toml").write_text(text)
    yield catalog
    here = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    listed = subprocess.run(
        ["docker", "image", "ls", "--quiet", REPOSITORY_NAME],
        capture_output=True,
        text=True,
        check=True,
        env=here,
    )
    if listed.stdout:
        images = set(listed.stdout.splitlines())
        subprocess.run(["docker", "image", "rm", "--force", *images], check=True, env=here)


def edit(catalog: Path, old: str, new: str) -> None:
    recipe = catalog / "recipes" / "variant-0.1.0.toml"
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))


def begin(catalog: Path, *options: str) -> subprocess.Popen[str]:
    """Start a build in a process group of its own, as a terminal would."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "builder",
            "build",
            "variant",
            "--catalog",
            str(catalog),
            *options,
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_log(state: Path, text: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        logs = list((state / "logs").glob("variant-*.log"))
        if any(text in log.read_text(errors="replace") for log in logs):
            return
        time.sleep(0.2)
    pytest.fail(f"no log says {text!r}")
