"""Engines that are not one cmake call, on trees of ours of the same shape."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support import upstreams
from support.commands import Builder
from support.environment import REPOSITORY
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("odd")]
SHAPES = REPOSITORY / "tests/data/trees"


def replaced(text: str, **values: str) -> str:
    """A recipe with other values of some keys, wherever they stand first."""
    for key, value in values.items():
        text, count = re.subn(rf'(?m)^{key}( *)= ".*"', rf'{key}\1= "{value}"', text, count=1)
        assert count, key
    return text


# Lucebox: two cmake calls that share a submodule, and a server in Python


@pytest.fixture
def lucebox(tmp_path: Path) -> tuple[str, str, str]:
    """URL and commit of the tree, and where its submodule has moved."""
    inner = upstreams.Upstream(tmp_path / "llama.cpp")
    shutil.copytree(SHAPES / "llama_shaped", inner.folder, dirs_exist_ok=True)
    inner.record("one")
    tree = upstreams.Upstream(tmp_path / "lucebox")
    shutil.copytree(SHAPES / "lucebox_shaped", tree.folder, dirs_exist_ok=True)
    tree.git("submodule", "--quiet", "add", inner.url, "dflash/deps/llama.cpp")
    gone = f"file://{tmp_path}/renamed"
    tree.git("config", "--file", ".gitmodules", "submodule.dflash/deps/llama.cpp.url", gone)
    return tree.url, tree.record("one"), inner.url


def test_two_cmake_calls_and_a_server_in_python(
    builder: Builder, catalog: Path, lucebox: tuple[str, str, str], made: set[str]
) -> None:
    url, commit, inner = lucebox
    text = (REPOSITORY / "recipes" / "lucebox-f12a87c.toml").read_text()
    text = replaced(text, git=url, commit=commit)
    text = replaced(text, **{'"dflash/deps/llama.cpp"': inner})
    for old, new in (
        ("[image]\n", '[image]\nrepository = "builder-test/lucebox"\n'),
        ('"test_dflash"]', '"test_dflash"]\ndefine = { CMAKE_UNITY_BUILD = true }'),
        ("define  = { ", "define  = { CMAKE_UNITY_BUILD = true, "),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (catalog / "recipes" / "lucebox-f12a87c.toml").write_text(text)
    done = builder("build", "lucebox", "--catalog", catalog, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    made.update(record["references"])
    image = record["references"][0]
    found = {(c["kind"], c["subject"], c["expected"]) for c in record["verdict"]["checks"]}
    for place in ("dflash/build", "bin"):
        library = f"/opt/engine/{place}/libggml-cuda.so.0.1.2"
        assert ("library", library, "machine code for sm_120") in found
        assert ("library", library, "does not need libcuda.so.1") in found
    assert ("output", "/opt/engine/bin/llama-server --version", "contains (b6ffab4a9)") in found
    run = ["docker", "run", "--env=BUILDER_CPU=1"]
    started = subprocess.run(
        [*run, "--rm", image, "--target", "m.gguf", "--draft", "d", "--port", "no"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "invalid int value: 'no'" in started.stderr  # server.py has all that it imports
    name = docker(*run[1:], "--detach", image, "--target", "m.gguf", "--draft", "d")
    try:
        healthy = "--format={{json .Config.Healthcheck.Test}}"
        _, *test = json.loads(docker("inspect", healthy, name))
        for _ in range(100):
            done = subprocess.run(["docker", "exec", name, *test], check=False)
            if done.returncode == 0:
                break
            time.sleep(0.2)
        assert done.returncode == 0, docker("logs", name)
    finally:
        docker("rm", "--force", name)
    code = "import layout, subprocess; subprocess.run([layout.PROGRAM, 'a b'], check=True)"
    scripts = "--env=PYTHONPATH=/opt/engine/dflash/scripts"
    output = docker("run", "--rm", scripts, "--entrypoint=python", image, "-c", code)
    assert output.splitlines() == ["test_dflash: 1 arguments", "  a b"]


# HAMi-core: a library, delivered as an image and as a file


RECIPE = "hami-core-pr188"


@pytest.fixture
def hami(tmp_path: Path, catalog: Path) -> Path:
    """A catalog with the recipe, on a tree of ours with a pull request 188."""
    tree = upstreams.Upstream(tmp_path / "hami")
    shutil.copytree(SHAPES / "hami_shaped", tree.folder, dirs_exist_ok=True)
    base = tree.record("one")
    hooks = (tree.folder / "src" / "cuda" / "hook.c").read_text()
    before = (
        "    CUdevice dev;\n    cuCtxGetDevice(&dev);\n    used[dev] += size;\n    return real_"
    )
    assert before in hooks
    mended = before.replace("dev;", "dev = prop->location.id;", 1)
    head = tree.pull(188, {"src/cuda/hook.c": hooks.replace(before, mended)})
    text = (REPOSITORY / "recipes" / f"{RECIPE}.toml").read_text()
    text = replaced(text, git=tree.url, commit=base, head=head)
    text += '\n[image]\nrepository = "builder-test/hami"\n'
    text = re.sub(r'(?m)^base      = ".*"', f'base      = "{base}"', text)
    (catalog / "recipes" / f"{RECIPE}.toml").write_text(text)
    shutil.copytree(REPOSITORY / "patches", catalog / "patches")
    return catalog


def changed(catalog: Path, old: str, new: str) -> None:
    """Other text in place of what stands once in the recipe."""
    file = catalog / "recipes" / f"{RECIPE}.toml"
    text = file.read_text()
    assert text.count(old) == 1, old
    file.write_text(text.replace(old, new))


def with_code(catalog: Path, name: str, old: str, new: str) -> None:
    """The recipe on a commit with other code in one file, without the pull request."""
    file = catalog / "recipes" / f"{RECIPE}.toml"
    source = re.search(r'git    = "file://(.*)"', file.read_text())
    assert source is not None
    tree = upstreams.Upstream(Path(source[1]))
    code = (tree.folder / name).read_text()
    assert old in code
    tree.write(name, code.replace(old, new))
    commit = tree.record("changed")
    text = re.sub(r"(?s)\[\[patch\]\].*?pull .*?(?=\[\[patch\]\])", "", file.read_text(), count=1)
    file.write_text(replaced(text, commit=commit))


def failures(stderr: str) -> set[str]:
    """What a verdict that failed says was expected, or its kind where nothing was."""
    return set(re.findall(r"(?m)^\W*(?:loads|library): \S+: expected: (.*?); found", stderr))


def test_a_library_is_delivered_alone(
    builder: Builder, hami: Path, tmp_path: Path, made: set[str]
) -> None:
    out = tmp_path / "out"
    options = ("--catalog", hami, "--output", out, "--json")
    done = builder("build", RECIPE, *options)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    made.update(record["references"])
    checks: dict[tuple[str, str], Any] = {
        (c["kind"], c["expected"]): c for c in record["verdict"]["checks"]
    }
    assert checks["loads", "LD_PRELOAD loads it into a program"]["found"] == "loaded"
    found = checks["loads", "every symbol is defined"]["found"]
    assert found.startswith("accepted: _dl_sym (left glibc in 2.34")
    assert checks["library", "defines cuMemGetInfo_v2"]["state"] == "passed"
    assert int(checks["library", "defines at least 200 symbols like cu*"]["found"]) > 200
    assert checks["library", "needs libcuda.so.1"]["found"] == "libcuda.so.1, libc.so.6"
    assert checks["library", "needs glibc 2.34 at most"]["found"] == "GLIBC_2.34"
    assert checks["contract", "none"]["state"] == "passed"
    layers = json.loads(docker("image", "inspect", record["references"][0]))[0]["RootFS"]["Layers"]
    assert len(layers) == 1
    library = out / "libvgpu.so"
    assert library.stat().st_mode & 0o777 == 0o755
    assert record["delivered"] == [str(library)]
    with pytest.raises(OSError, match=r"libcuda\.so\.1"):
        ctypes.CDLL(str(library), mode=os.RTLD_LAZY)  # there is no driver here
    # Again: nothing is built, and the file is written all the same.
    library.unlink()
    done = builder("build", RECIPE, *options)
    assert json.loads(done.stdout)["built"] is False
    assert library.is_file()


def test_a_newer_compiler_refuses_the_tree_without_our_patch_and_a_newer_glibc_shows(
    builder: Builder, hami: Path
) -> None:
    base = hami / "recipes" / "bases" / "cuda-12.9-headers.toml"
    text = base.read_text().replace("debian-bookworm", "debian-trixie")
    base.write_text(re.sub(r"(?m)^\[debian\]\nlock .*$", "", text))
    done = builder("build", RECIPE, "--catalog", hami)
    assert done.returncode == 7
    assert failures(done.stderr) == {"needs glibc 2.34 at most"}
    assert "GLIBC_2.38" in done.stderr
    patch = hami / "patches" / "hami-core-gcc14.patch"
    _, header, value = re.split(r"(?m)^(?=--- a/)", patch.read_text())
    for kept, error in (
        (header, ".return. with no value, in function returning non-void"),
        (value, "implicit declaration of function .flock."),
    ):
        patch.write_text(kept)
        done = builder("build", RECIPE, "--catalog", hami)
        assert done.returncode == 6
        assert re.search(error, done.stderr), done.stderr


def test_a_library_that_hooks_nothing_is_not_delivered(builder: Builder, hami: Path) -> None:
    changed(hami, 'CMAKE_BUILD_TYPE          = "Debug"', "")
    done = builder("build", RECIPE, "--catalog", hami)
    assert done.returncode == 7
    assert "200 symbols like cu*; found: 0" in done.stderr
    assert {"defines cuMemAlloc_v2", "defines nvmlInit_v2"} <= failures(done.stderr)
    assert "defines dlsym" not in failures(done.stderr)


def test_a_hook_that_is_not_asked_for_is_missed(builder: Builder, hami: Path) -> None:
    changed(hami, "HOOK_MEMINFO_ENABLE       = 1\n", "")
    done = builder("build", RECIPE, "--catalog", hami)
    assert done.returncode == 7
    assert failures(done.stderr) == {"defines cuMemGetInfo_v2"}


def test_a_library_that_calls_what_is_nowhere_is_not_delivered(
    builder: Builder, hami: Path, tmp_path: Path
) -> None:
    with_code(hami, "src/libvgpu.c", "    try_lock", "    nowhere();\n    try_lock")
    changed(hami, "[artifact.undefined]\n", '[artifact.undefined]\ncuInit = "x"\n')
    with_code(hami, "src/limit.h", "int try_lock", "void nowhere(void);\nint try_lock")
    out = tmp_path / "out"
    done = builder("build", RECIPE, "--catalog", hami, "--output", out)
    assert done.returncode == 7
    assert failures(done.stderr) == {"every symbol is defined"}
    assert "nowhere is undefined; cuInit is defined: remove it from the recipe" in done.stderr
    assert not out.exists()


def test_a_library_that_cannot_be_loaded_is_not_delivered(builder: Builder, hami: Path) -> None:
    code = "extern void *_dl_sym(void *, const char *, void *);\nvoid *at_once = _dl_sym;\n"
    with_code(hami, "src/libvgpu.c", "#define VISIBLE", f"{code}#define VISIBLE")
    done = builder("build", RECIPE, "--catalog", hami)
    assert done.returncode == 7
    assert failures(done.stderr) == {"LD_PRELOAD loads it into a program"}
    assert "undefined symbol: _dl_sym" in done.stderr


def test_a_library_that_never_ends_loading_has_failed(hami: Path, builder: Builder) -> None:
    endless = "__attribute__((constructor)) static void wait(void) { for (;;) pause(); }\n"
    endless = f"#include <unistd.h>\n{endless}"
    with_code(hami, "src/libvgpu.c", "static void begin", f"{endless}static void begin")
    done = builder("build", RECIPE, "--catalog", hami)
    assert done.returncode == 7
    assert "loads: LD_PRELOAD: expected: an answer; found" in done.stderr
    assert "did not end" in done.stderr


def test_only_artifacts_are_files(builder: Builder, tmp_path: Path) -> None:
    done = builder("build", "hello-sm120", "--output", tmp_path / "out")
    assert done.returncode == 3
    assert "hello-sm120-0.1.0 has no files that --output could write" in done.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    done = builder("build", RECIPE, "--output", tmp_path / "file" / "below")
    assert done.returncode == 4
    assert "cannot write to the directory" in done.stderr
