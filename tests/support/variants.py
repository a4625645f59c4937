"""An engine to be bent: a library of one file; a plugin of pytest."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import uuid4

import pytest

from support.commands import ForkServer, Running
from support.smoke_tests import docker

REPOSITORY_NAME = "builder-test/variant"
RECIPE = f"""
engine  = "variant"
version = "0.1.0"
summary = "A library of one file"
license = "MIT"
family  = "artifact"
base    = "cuda-13.0"

[source]
path = "engines/variant"

[cuda]
arch = ["120"]

[[cmake]]
targets = ["one"]
define  = {{ ANSWER = "first" }}

[artifact]
files = ["libone.so"]
loads = false

[image]
repository = "{REPOSITORY_NAME}"
tags       = ["0.1.0"]

[build]
disk = 1.0

[[probe]]
library = "libone.so"
symbols = ["answer_first"]
"""
CMAKE = """cmake_minimum_required(VERSION 3.20)
project(one C)
add_library(one SHARED one.c)
target_compile_definitions(one PRIVATE ANSWER=answer_${ANSWER})
"""
PATIENCE = 240  # seconds until a build has begun to compile


def labels(image: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(
        docker("image", "inspect", "--format={{json .Config.Labels}}", image)
    )
    return found


@pytest.fixture
def one_file(catalog: Path) -> Iterator[Path]:
    """A catalog whose only engine, ``variant``, is a library of one file: a build of seconds."""
    folder = catalog / "engines" / "variant"
    folder.mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "one.c").write_text("int ANSWER(void) { return 1; }\n")
    (catalog / "recipes" / "variant-0.1.0.toml").write_text(RECIPE)
    yield catalog
    _remove_images()


def _remove_images() -> None:
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


def lasting(catalog: Path) -> None:
    """Have the compile of the library of one file take seconds, so that it can be interrupted.

    No cache of an earlier run has it.
    """
    lists = catalog / "engines" / "variant" / "CMakeLists.txt"
    lists.write_text(f"{lists.read_text()}execute_process(COMMAND sleep 4)\n# {uuid4()}\n")


Begin = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def begin(fork_server: ForkServer) -> Begin:
    """Start a build in a session of its own, as a terminal would."""

    def run(catalog: Path, *options: str) -> AbstractContextManager[Running]:
        command = ["build", "variant", "--catalog", str(catalog), *options]
        return fork_server.running(command, session=True)

    return run


def wait_for_log(state: Path, text: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        logs = list((state / "logs").glob("variant-*.log"))
        if any(text in log.read_text(errors="replace") for log in logs):
            return
        time.sleep(0.2)
    pytest.fail(f"no log says {text!r}")
