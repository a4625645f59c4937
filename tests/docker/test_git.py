"""An engine out of a git repository, with the driver's calls in it, all the way."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import Builder
from support.environment import REPOSITORY
from support.upstreams import Upstream

pytestmark = pytest.mark.docker

RECIPE = """
engine  = "from-git"
version = "1"
summary = "hello-sm120 out of git, with VMM"
license = "MIT"
family  = "cmake"
base    = "cuda-13.0"
source  = {{ git = "{url}", ref = "main", commit = "{commit}" }}
cuda    = {{ arch = ["120"], vmm = true }}

[[cmake]]
define = {{ HELLO_CUDA_NO_VMM = false, HELLO_BUILD_NUMBER = 7, HELLO_BUILD_COMMIT = "{short}" }}

[debian]
build   = ["libcpp-httplib-dev", "nlohmann-json3-dev"]
runtime = ["libcpp-httplib0.18"]

[image]
repository = "builder-test/from-git"
tags       = ["1"]
entrypoint = ["/opt/engine/bin/hello-server"]

[build]
disk = 2.0

[[probe]]
run  = ["hello-server", "--version"]
contains = ["version: 7 ({short})"]

[[probe]]
library = "libhello-cuda.so"
needs   = ["libcuda.so.1"]
"""

PLAIN = """
engine  = "plain"
version = "1"
summary = "a program that needs no Debian packages"
license = "MIT"
family  = "cmake"
base    = "cuda-13.0"
source  = {{ git = "{url}", ref = "main", commit = "{commit}" }}
cuda    = {{ arch = ["120"], vmm = true }}

[[cmake]]

[image]
repository = "builder-test/from-git"
tags       = ["plain"]
entrypoint = ["/opt/engine/bin/plain"]

[build]
disk = 2.0

[[probe]]
run  = ["plain"]
contains = ["plain, of a mirror"]
"""
PLAIN_LISTS = """cmake_minimum_required(VERSION 3.24)
project(plain LANGUAGES CXX CUDA)
add_executable(plain plain.cu)
install(TARGETS plain)
"""
PLAIN_PROGRAM = """#include <cstdio>
__global__ void kernel() {}
int main(int arguments, char **) {
    if (arguments > 2) kernel<<<1, 1>>>();
    std::puts("plain, of a mirror");
}
"""


@pytest.fixture(autouse=True)
def no_images_left() -> Iterator[None]:
    yield
    done = subprocess.run(
        ["docker", "image", "ls", "--quiet", "builder-test/from-git"],
        check=True,
        capture_output=True,
        text=True,
    )
    if done.stdout:
        subprocess.run(["docker", "image", "rm", "--force", *set(done.stdout.split())], check=False)


@pytest.fixture
def recipe(catalog: Path, tmp_path: Path) -> str:
    """A repository of the engine, and a recipe that pins its commit; the commit."""
    upstream = Upstream(tmp_path / "upstream")
    engine = REPOSITORY / "engines" / "hello-sm120"
    shutil.copytree(engine, upstream.folder, dirs_exist_ok=True)
    # A tree's own .dockerignore is about its own images, and must not thin the source of ours.
    upstream.write(".dockerignore", "*\n")
    commit = upstream.record("one")
    text = RECIPE.format(url=upstream.url, commit=commit, short=commit[:7])
    (catalog / "recipes" / "from-git-1.toml").write_text(text)
    return commit


def test_a_pinned_commit_is_built_verified_and_named_in_the_image(
    builder: Builder, catalog: Path, recipe: str
) -> None:
    done = builder("build", "from-git", "--catalog", catalog, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    checks = {(check["kind"], check["expected"]): check for check in result["verdict"]["checks"]}
    assert checks["library", "needs libcuda.so.1"]["passed"]
    assert checks["output", f"contains version: 7 ({recipe[:7]})"]["passed"]
    inspected = subprocess.run(
        ["docker", "image", "inspect", "--format={{json .Config.Labels}}", result["references"][0]],
        check=True,
        capture_output=True,
        text=True,
    )
    labels = json.loads(inspected.stdout)
    assert labels["org.opencontainers.image.revision"] == recipe
    assert labels["org.opencontainers.image.source"].startswith("file://")
    assert labels["builder.key"] == result["key"]


def test_offline_builds_from_the_mirror_and_names_what_it_lacks(
    builder: Builder, catalog: Path, tmp_path: Path
) -> None:
    upstream = Upstream(tmp_path / "upstream")
    upstream.write("CMakeLists.txt", PLAIN_LISTS)
    upstream.write("plain.cu", PLAIN_PROGRAM)
    commit = upstream.record("one")
    recipe = catalog / "recipes" / "plain-1.toml"
    recipe.write_text(PLAIN.format(url=upstream.url, commit=commit))
    done = builder("build", "plain", "--offline", "--catalog", catalog)
    assert done.returncode == 5, done.stderr
    assert f"{commit} of file://" in done.stderr
    assert "is not mirrored" in done.stderr
    done = builder("pin", "mirror", "plain", "--catalog", catalog)
    assert done.returncode == 0, done.stderr
    (tmp_path / "upstream").rename(tmp_path / "gone")
    done = builder("build", "plain", "--offline", "--catalog", catalog, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["built"]
    text = recipe.read_text()
    recipe.write_text(text.replace("[build]", '[debian]\nruntime = ["tree"]\n\n[build]'))
    done = builder("build", "plain", "--offline", "--catalog", catalog)
    assert done.returncode == 5, done.stderr
    assert "plain-1 needs Debian packages: tree" in done.stderr
    base = catalog / "recipes" / "bases" / "cuda-13.0.toml"
    base.write_text(base.read_text().replace('"libgomp1"', '"libgomp1", "tree"'))
    done = builder("build", "plain", "--offline", "--catalog", catalog)
    assert done.returncode == 5, done.stderr
    assert "the base cuda-13.0" in done.stderr
    assert "is not in the engine" in done.stderr
