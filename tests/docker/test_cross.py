"""Images for amd64 that are compiled on arm64 have the device code of native builds.

qemu-user stands for the arm64 machine.  Only with --cross: the base to compile in takes ten minutes
under emulation, and a compile half a minute.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from builder.docker import buildx
from builder.image.device_code import CodeDifference, compare_code
from support.commands import Builder
from support.environment import REPOSITORY
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.cross, pytest.mark.xdist_group("cross")]

LLAMA_SHAPED = """
engine  = "shaped"
version = "cross"
summary = "A tree of llama.cpp's shape"
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"
source  = { path = "engines/llama_shaped" }
cuda    = { arch = ["120"], vmm = true }
llama   = { build_number = 2, build_commit = "012345678" }

[[cmake]]
targets = ["llama-server", "llama-cli", "llama-bench"]

[[probe]]
run      = ["/opt/engine/bin/llama-server", "--version"]
contains = ["version: 2 (012345678)"]

[image]
repository = "llama-shaped"
tags       = ["cross"]
"""

SIGNED = """
__global__ void halved(char *values) { values[threadIdx.x] = values[threadIdx.x] >> 1; }
"""

PROGRAMS = """
import os, sys
for folder, _, names in os.walk("/"):
    if folder in {"/proc", "/sys", "/dev"}:
        _.clear()
        continue
    for path in (os.path.join(folder, name) for name in names):
        if ".so" in path or os.path.islink(path) or not os.access(path, os.X_OK):
            continue
        with open(path, "rb") as file:
            head = file.read(20)
        if head[:4] == b"\\x7fELF":
            print(int.from_bytes(head[18:20], "little"), path)
"""
"""Prints the machine of each ELF program of a root: 62 is x86-64, 183 AArch64 (ELF, e_machine)."""


@pytest.fixture(autouse=True)
def emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine runs programs of arm64; images have names of their own."""
    found = buildx.platforms_of()
    assert "linux/arm64" in found, f"install qemu-user-static: the engine runs {', '.join(found)}"
    monkeypatch.setenv("BUILDER_NAMESPACE", "builder-test/cross")


def built(builder: Builder, made: set[str], *arguments: str | Path) -> dict[str, Any]:
    done = builder("build", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    made.update(result["references"])
    return result


def library(image: str, path: str, folder: Path) -> Path:
    """A file of an image."""
    folder.mkdir()
    container = docker("create", image)
    try:
        docker("cp", "--follow-link", f"{container}:{path}", str(folder))
    finally:
        docker("rm", container)
    return folder / Path(path).name


def compared(native: Path, cross: Path) -> CodeDifference:
    with native.open("rb") as before, cross.open("rb") as after:
        found = compare_code(before, after)
    assert found is not None
    return found


def require_same_code(native: Path, cross: Path, codes: list[str]) -> None:
    found = compared(native, cross)
    assert [each.code for each in found.totals] == codes
    assert all(each.before == each.after == each.equal > 0 for each in found.totals)
    assert not found.functions
    assert not found.others


def shaped(catalog: Path) -> None:
    tree = REPOSITORY / "tests/data/trees/llama_shaped"
    shutil.copytree(tree, catalog / "engines" / "llama_shaped")
    (catalog / "recipes" / "shaped-cross.toml").write_text(LLAMA_SHAPED)


@pytest.fixture
def devel(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> str:
    """The base to compile in on arm64 for amd64; an image that uses it has been built."""
    monkeypatch.setenv("BUILDER_COMPILE_ON", "arm64")
    shown = builder("show", "hello-sm120", "--json")
    assert shown.returncode == 0, shown.stderr
    key = json.loads(shown.stdout)["base"]["key"]
    return f"builder-base/cuda-13.0:devel-{key[:12]}"


def test_the_smallest_engine(
    builder: Builder, made: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = built(builder, made, "hello-sm120")
    monkeypatch.setenv("BUILDER_COMPILE_ON", "arm64")
    cross = built(builder, made, "hello-sm120")
    assert (native["way"], cross["way"]) == ("native", "cross emulated")
    path = "/opt/engine/lib/libhello-cuda.so"
    files = [
        library(each["references"][0], path, tmp_path / each["way"]) for each in (native, cross)
    ]
    require_same_code(*files, ["compute_120", "sm_120"])


def test_a_tree_of_llama_cpps_shape(
    builder: Builder,
    made: set[str],
    catalog: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shaped(catalog)
    arguments = ("shaped-cross", "--catalog", catalog)
    native = built(builder, made, *arguments)
    monkeypatch.setenv("BUILDER_COMPILE_ON", "arm64")
    cross = built(builder, made, *arguments)
    path = "/opt/engine/bin/libggml-cuda.so"
    files = [
        library(each["references"][0], path, tmp_path / each["way"]) for each in (native, cross)
    ]
    require_same_code(*files, ["compute_120a", "sm_120a"])


@pytest.mark.parametrize("flags", ["set", "missing"])
def test_char_is_that_of_the_image(devel: str, images: dict[str, str], flags: str) -> None:
    compile_it = "cat >/tmp/signed.cu; nvcc -arch=sm_120 --ptx -o - /tmp/signed.cu"
    options = ["--rm", "--interactive", "--network=none"]
    native = docker("run", *options, images["devel"], "sh", "-euc", compile_it, text=SIGNED)
    if flags == "missing":
        options.append("--env=NVCC_PREPEND_FLAGS=-U__SIZEOF_FLOAT128__")
    compile_it += " -ccbin=x86_64-linux-gnu-g++"
    cross = docker("run", *options, devel, "sh", "-euc", compile_it, text=SIGNED)
    assert "ld.global.s8" in native
    assert (cross == native) == (flags == "set")
    assert ("ld.global.u8" in cross) == (flags == "missing")


def test_no_program_of_the_compile_is_of_the_image(devel: str) -> None:
    options = ["--rm", "--interactive", "--network=none", "--user=root"]
    found = docker("run", *options, devel, "python3", "-", text=PROGRAMS).splitlines()
    machines = {line.split()[1]: line.split()[0] for line in found}
    assert {"/usr/local/cuda/bin/nvcc", "/usr/bin/cmake"} <= machines.keys()
    assert set(machines.values()) == {"183"}, [line for line in found if line.startswith("62 ")]
