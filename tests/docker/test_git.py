"""An engine out of a git repository, with the driver's calls in it, from fetch to labels."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import Builder
from support.farms import text_line
from support.upstreams import Upstream

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("llama")]

RECIPE = """
engine  = "from-git"
version = "1"
summary = "a program and a library that calls the driver, without Debian packages"
license = "MIT"
family  = "cmake"
base    = "cuda-13.0"
source  = {{ git = "{url}", ref = "main", commit = "{commit}" }}
cuda    = {{ arch = ["120"], vmm = true }}

[[cmake]]
define = {{ BUILD_NUMBER = 7, BUILD_COMMIT = "{short}" }}

[image]
repository = "builder-test/from-git"
tags       = ["1"]
entrypoint = ["/opt/engine/bin/program"]

[build]
disk = 2.0

[[probe]]
run  = ["program"]
contains = ["version: 7 ({short})"]

[[probe]]
library = "libdriver.so"
needs   = ["libcuda.so.1"]
"""
LISTS = """cmake_minimum_required(VERSION 3.24)
project(from-git LANGUAGES CXX CUDA)
find_package(CUDAToolkit REQUIRED)
add_executable(program program.cu)
target_compile_definitions(program PRIVATE
    BUILD_NUMBER=${BUILD_NUMBER} BUILD_COMMIT=${BUILD_COMMIT})
add_library(driver SHARED driver.cu)
target_link_libraries(driver PRIVATE CUDA::cuda_driver)
install(TARGETS program driver)
"""
PROGRAM = """#include <cstdio>
#define TEXT_OF(value) #value
#define TEXT(value) TEXT_OF(value)
__global__ void kernel() {}
int main(int arguments, char **) {
    if (arguments > 2) kernel<<<1, 1>>>();
    std::puts("version: " TEXT(BUILD_NUMBER) " (" TEXT(BUILD_COMMIT) ")");
}
"""
DRIVER = """#include <cuda.h>
__global__ void kernel() {}
int driver_version() {
    int version = 0;
    cuDriverGetVersion(&version);
    kernel<<<1, 1>>>();
    return version;
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


@pytest.mark.usefixtures("own_cache")  # a cache may have the mirror of an earlier run's path
def test_a_pinned_commit_is_mirrored_built_offline_and_named_in_the_image(
    builder: Builder, catalog: Path, tmp_path: Path
) -> None:
    upstream = Upstream(tmp_path / "upstream")
    upstream.write("CMakeLists.txt", LISTS)
    upstream.write("program.cu", PROGRAM)
    upstream.write("driver.cu", DRIVER)
    # A tree's own .dockerignore is about its own images, and must not thin the source of ours.
    upstream.write(".dockerignore", "*\n")
    commit = upstream.record("one")
    recipe = catalog / "recipes" / "from-git-1.toml"
    recipe.write_text(RECIPE.format(url=upstream.url, commit=commit, short=commit[:7]))
    done = builder("build", "from-git", "--offline", "--catalog", catalog)
    assert done.returncode == 5, done.stderr
    assert f"{commit} of file://" in done.stderr
    assert "is not mirrored" in done.stderr
    done = builder("pin", "mirror", "from-git", "--catalog", catalog)
    assert done.returncode == 0, done.stderr
    (tmp_path / "upstream").rename(tmp_path / "gone")

    done = builder("build", "from-git", "--offline", "--catalog", catalog, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["built"]
    checks = {(check["kind"], check["expected"]): check for check in result["verdict"]["checks"]}
    assert checks["library", "needs libcuda.so.1"]["state"] == "passed"
    assert checks["output", f"contains version: 7 ({commit[:7]})"]["state"] == "passed"
    inspected = subprocess.run(
        ["docker", "image", "inspect", "--format={{json .Config.Labels}}", result["references"][0]],
        check=True,
        capture_output=True,
        text=True,
    )
    labels = json.loads(inspected.stdout)
    assert labels["org.opencontainers.image.revision"] == commit
    assert labels["org.opencontainers.image.source"].startswith("file://")
    assert labels["builder.key"] == result["key"]

    text = recipe.read_text()
    recipe.write_text(text.replace("[build]", '[debian]\nruntime = ["tree"]\n\n[build]'))
    done = builder("build", "from-git", "--offline", "--catalog", catalog)
    assert done.returncode == 5, done.stderr
    assert "from-git-1 installs Debian packages, and has no lock of them" in done.stderr
    base = catalog / "recipes" / "bases" / "cuda-13.0.toml"
    text = base.read_text()
    base.write_text(text.replace('"libgomp1"', '"libgomp1", "tree"'))
    done = builder("build", "from-git", "--offline", "--catalog", catalog)
    assert done.returncode == 3, done.stderr
    assert "the Debian lock of cuda-13.0 does not fit" in done.stderr
    base.write_text(text.replace('[debian]\nlock = "locks/cuda-13.0.debian.toml"\n', ""))
    done = builder("build", "from-git", "--offline", "--catalog", catalog)
    assert done.returncode == 5, done.stderr
    assert "the base cuda-13.0" in done.stderr
    assert "its packages have no lock, and nothing is fetched (--offline)" in done.stderr


@pytest.mark.usefixtures("own_cache")
def test_a_definition_that_cmake_does_not_use_fails_the_build(
    builder: Builder, catalog: Path, tmp_path: Path
) -> None:
    """A misspelled option, or one of an older tree, makes another engine without a word."""
    upstream = Upstream(tmp_path / "upstream")
    # The first call configures another project, which does not use what this one uses.
    inner = "execute_process(COMMAND ${CMAKE_COMMAND} -S ${CMAKE_SOURCE_DIR}/two -B two -DREAD=1)\n"
    start = "cmake_minimum_required(VERSION 3.24)\nproject(x NONE)\n"
    read = "option(CACHED x OFF)\nif (READ)\nendif()\nconfigure_file(x.in x)\n"
    upstream.write("CMakeLists.txt", f"{start}{read}{inner}")
    upstream.write("x.in", "#cmakedefine TEMPLATE\n")
    upstream.write("two/CMakeLists.txt", f"{start}option(SECOND x OFF)\n")
    commit = upstream.record("one")
    text = RECIPE.format(url=upstream.url, commit=commit, short=commit[:7])
    fine = "CACHED = true, READ = 1, TEMPLATE = 1, CMAKE_POLICY_VERSION_MINIMUM = '3.5'"
    old = text[text.index("[[cmake]]") : text.index("[image]")]
    recipe = catalog / "recipes" / "from-git-1.toml"

    def said(first: str, second: str, status: int = 6) -> str:
        calls = f"[[cmake]]\ndefine = {{ {first} }}\n\n"
        calls += f"[[cmake]]\nsource = 'two'\ndefine = {{ {second} }}\n\n"
        recipe.write_text(text.replace(old, calls))
        done = builder("build", "from-git", "--catalog", catalog)
        assert done.returncode == status, done.stderr
        return done.stderr

    lost = said(f"{fine}, MISSPELLED = 1, WITH_UNDERLINE = true", "SECOND = true")
    assert "the source has no use for MISSPELLED, WITH_UNDERLINE" in lost
    assert f"{recipe}:{text_line(recipe, 'define')}: cmake.0.define.MISSPELLED: " in lost
    lost = said(fine, "SECOND = true, CACHED = true")
    assert "the source has no use for CACHED\n" in lost
    assert "cmake.1.define.CACHED" in lost
    said(fine, "SECOND = true", status=7)  # it is built; only the probes want more
