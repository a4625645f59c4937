"""Engines that are not one cmake call, on trees of ours of the same shape."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import upstreams
from conftest import REPOSITORY, Builder
from proving import docker

pytestmark = pytest.mark.docker
SHAPES = REPOSITORY / "tests"


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
    builder: Builder, catalogue: Path, lucebox: tuple[str, str, str], made: set[str]
) -> None:
    url, commit, inner = lucebox
    text = (REPOSITORY / "recipes" / "lucebox-f12a87c.toml").read_text()
    text = replaced(text, git=url, commit=commit, repository="builder-test/lucebox")
    text = replaced(text, **{'"dflash/deps/llama.cpp"': inner})
    (catalogue / "recipes" / "lucebox-f12a87c.toml").write_text(text)
    shutil.copytree(REPOSITORY / "recipes" / "locks", catalogue / "recipes" / "locks")
    done = builder("build", "lucebox", "--catalogue", catalogue, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    made.update(record["references"])
    image = record["references"][0]
    found = {(c["proof"], c["subject"], c["expected"]) for c in record["verdict"]["checks"]}
    for place in ("dflash/build", "bin"):
        library = f"/opt/engine/{place}/libggml-cuda.so.0.1.2"
        assert ("library", library, "machine code for sm_120") in found
        assert ("library", library, "does not need libcuda.so.1") in found
    started = subprocess.run(
        ["docker", "run", "--rm", image, "--target", "m.gguf", "--draft", "d", "--port", "no"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "invalid int value: 'no'" in started.stderr  # server.py has all that it imports
    code = "import layout, subprocess; subprocess.run([layout.PROGRAM, 'a b'], check=True)"
    scripts = "--env=PYTHONPATH=/opt/engine/dflash/scripts"
    said = docker("run", "--rm", scripts, "--entrypoint=python", image, "-c", code)
    assert said.splitlines() == ["test_dflash: 1 arguments", "  a b"]


# HAMi-core: a library, delivered as an image and as a file


@pytest.fixture
def hami(tmp_path: Path, catalogue: Path) -> Path:
    """A catalogue with the recipe, on a tree of ours with a pull request 188."""
    tree = upstreams.Upstream(tmp_path / "hami")
    shutil.copytree(SHAPES / "hami_shaped", tree.folder, dirs_exist_ok=True)
    base = tree.record("one")
    limit = (tree.folder / "src" / "multiprocess" / "limit.c").read_text()
    head = tree.pull(188, {"src/multiprocess/limit.c": limit.replace("total / 2", "total / 4")})
    text = (REPOSITORY / "recipes" / "hami-core-pr188.toml").read_text()
    text = replaced(text, git=tree.url, commit=base, base="", repository="builder-test/hami")
    text = text.replace('base    = ""', 'base    = "cuda-12.9-headers"')
    text = re.sub(r'(?m)^base     = ".*"', f'base     = "{base}"', text)
    text = replaced(text, head=head)
    (catalogue / "recipes" / "hami-core-pr188.toml").write_text(text)
    return catalogue


def test_a_library_is_delivered_alone(
    builder: Builder, hami: Path, tmp_path: Path, made: set[str]
) -> None:
    out = tmp_path / "out"
    options = ("--catalogue", hami, "--output", out, "--json")
    done = builder("build", "hami-core-pr188", *options)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    made.update(record["references"])
    checks: dict[tuple[str, str], Any] = {
        (c["proof"], c["expected"]): c for c in record["verdict"]["checks"]
    }
    assert checks["loads", "dlopen, all functions found"]["found"] == "loaded"
    assert checks["library", "offers dlsym"]["passed"]
    assert checks["library", "needs libnvidia-ml.so.1"]["passed"]
    assert checks["contract", "none"]["passed"]
    layers = json.loads(docker("image", "inspect", record["references"][0]))[0]["RootFS"]["Layers"]
    assert len(layers) == 1
    library = out / "libvgpu.so"
    assert library.stat().st_mode & 0o777 == 0o755
    assert record["delivered"] == [str(library)]
    with pytest.raises(OSError, match=r"libcuda\.so\.1|libnvidia-ml\.so\.1"):
        ctypes.CDLL(str(library))  # there is no driver here
    # Again: nothing is built, and the file is written all the same.
    library.unlink()
    done = builder("build", "hami-core-pr188", *options)
    assert json.loads(done.stdout)["built"] is False
    assert library.is_file()


def test_a_library_that_cannot_be_loaded_is_not_delivered(
    builder: Builder, hami: Path, tmp_path: Path
) -> None:
    recipe = hami / "recipes" / "hami-core-pr188.toml"
    source = re.search(r'git    = "file://(.*)"', recipe.read_text())
    assert source is not None
    tree = upstreams.Upstream(Path(source[1]))
    code = (tree.folder / "src" / "libvgpu.c").read_text()
    broken = code.replace("limit_of(*bytes)", "nowhere(*bytes)").replace(
        '#include "limit.h"', '#include "limit.h"\nsize_t nowhere(size_t total);'
    )
    commit = tree.commit("broken", **{"src__libvgpu.c": broken})
    text = re.sub(r"\[\[patch\]\].*?\[cuda\]", "[cuda]", recipe.read_text(), flags=re.S)
    recipe.write_text(replaced(text, commit=commit))
    out = tmp_path / "out"
    done = builder("build", "hami-core-pr188", "--catalogue", hami, "--output", out)
    assert done.returncode == 7
    assert "loads: /libvgpu.so: expected dlopen, all functions found" in done.stderr
    assert "undefined symbol: nowhere" in done.stderr
    assert not out.exists()


def test_a_library_that_never_ends_loading_has_failed(hami: Path, builder: Builder) -> None:
    recipe = hami / "recipes" / "hami-core-pr188.toml"
    source = re.search(r'git    = "file://(.*)"', recipe.read_text())
    assert source is not None
    tree = upstreams.Upstream(Path(source[1]))
    code = (tree.folder / "src" / "libvgpu.c").read_text()
    endless = "__attribute__((constructor)) static void wait(void) { for (;;) { } }\n"
    commit = tree.commit("endless", **{"src__libvgpu.c": code + endless})
    text = re.sub(r"\[\[patch\]\].*?\[cuda\]", "[cuda]", recipe.read_text(), flags=re.S)
    recipe.write_text(replaced(text, commit=commit))
    done = builder("build", "hami-core-pr188", "--catalogue", hami)
    assert done.returncode == 7
    assert "loads: dlopen: expected an answer; found" in done.stderr
    assert "did not end" in done.stderr


def test_only_artefacts_are_files(builder: Builder, tmp_path: Path) -> None:
    done = builder("build", "hello-sm120", "--output", tmp_path / "out")
    assert done.returncode == 3
    assert "hello-sm120-0.1.0 is an engine: it is an image, and no file" in done.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    done = builder("build", "hami-core-pr188", "--output", tmp_path / "file" / "below")
    assert done.returncode == 4
    assert "nothing can be written to" in done.stderr
