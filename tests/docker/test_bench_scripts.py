"""bench/overhead.py and bench/smoke.py run, for one iteration on a library of one file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.commands import Builder
from support.environment import REPOSITORY

pytestmark = pytest.mark.docker
RECIPE = """
engine  = "one-file"
version = "1"
summary = "A library of one file"
license = "MIT"
family  = "artifact"
base    = "cuda-13.0"

[source]
path = "engine"

[cuda]
arch = ["120"]
vmm  = true

[[cmake]]
targets = ["one"]

[artifact]
files = ["libone.so"]

[image]
repository = "builder-test/one-file"
tags       = ["1"]

[build]
disk = 1.0

[[probe]]
library = "libone.so"
symbols = ["one"]
"""
CMAKE = "cmake_minimum_required(VERSION 3.20)\nproject(one C)\nadd_library(one SHARED one.c)\n"


def ran(script: str, *arguments: str | Path) -> Any:
    command = [sys.executable, f"bench/{script}.py", *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("hello")  # it has the base built
def test_one_iteration(catalog: Path, builder: Builder, made: set[str]) -> None:
    (catalog / "engine").mkdir()
    (catalog / "engine" / "CMakeLists.txt").write_text(CMAKE)
    (catalog / "engine" / "one.c").write_text("int one(void) { return 1; }\n")
    (catalog / "recipes" / "one-file-1.toml").write_text(RECIPE)
    done = builder("build", "one-file", "--catalog", catalog, "--json")
    assert done.returncode == 0, done.stderr
    image = json.loads(done.stdout)["references"]
    made.update(image)
    where = ("--catalog", catalog)
    figures = json.loads(ran("overhead", "one-file", *where, "--runs", "1", "--json"))
    assert figures["overhead"]["ratio"] > 0
    assert figures["unchanged"]["builds_started"] == 0
    assert {*figures["sizes"]} == {"one-file-1", "cuda-13.0 (runtime)"}
    rows = ran("smoke", image[0], *where).splitlines()
    assert [row.count("|") for row in rows] == [3, 3]
    assert image[0] in rows[0]
