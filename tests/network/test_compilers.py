"""Two releases of nvcc from PyPI on kernels of our own, one of which nvcc 13.2.51 miscompiles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from builder.build.compilers import LIMIT
from support.commands import Builder
from support.environment import REPOSITORY

RECIPE = """\
engine  = "quantized"
version = "1"
summary = "kernels without a server"
license = "MIT"
family  = "cmake"
base    = "cuda-13.0"

[source]
path = "engines/quantized"

[cuda]
arch = ["120"]

[[cmake]]

[[probe]]
run      = ["server", "--version"]
contains = ["1"]

[image]
repository = "quantized"
tags       = ["1"]
entrypoint = ["/opt/engine/bin/server"]
"""


@pytest.mark.network
def test_nvcc_13_2_51_fails_and_13_2_86_passes(builder: Builder, catalog: Path) -> None:
    (catalog / "recipes" / "quantized-1.toml").write_text(RECIPE)
    shutil.copytree(REPOSITORY / "tests" / "data" / "quantized", catalog / "engines" / "quantized")
    shutil.copytree(REPOSITORY / "dockerfiles", catalog / "dockerfiles")
    versions = ("13.2.51", "13.2.86")
    options = [word for version in versions for word in ("--nvcc", version)]
    done = builder("compilers", "quantized", *options, "--json", "--catalog", catalog)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    old, new = told["compiler"]
    assert (old["nvcc"], new["nvcc"]) == versions
    assert old["ended"].keys() == {"q4_1"}
    assert old["ended"]["q4_1"].startswith("out of bounds, PTX line")
    assert new["ended"] == {}
    assert new["nmse"]["q4_1"] < LIMIT
    for each in (old, new):
        assert each["nmse"]["q8_0"] < 1e-9
        assert each["nmse"]["q4_0"] > LIMIT  # the planted mask, with any compiler
    assert told["not_compared"]["q6_K"] == "the tree has no vec_dot_q6_K_q8_1"
    assert "nvcc 13.2.51: q4_0, q4_1 wrong of 3" in done.stderr
    done = builder("compilers", "quantized", "--nvcc", "13.2.51", "--save", "--catalog", catalog)
    assert done.returncode == 2
    assert "--save writes the table of all releases" in done.stderr
    done = builder("compilers", "hello-sm120", "--catalog", REPOSITORY)
    assert done.returncode == 8
    assert "has no quantization kernels of ggml" in done.stderr
