"""A real llama.cpp through its family: the tree that llama-cpp-python's sdist holds.

GitHub is not needed for it, so it can be compiled wherever PyPI answers.  Half an hour; only
with --engine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.servers import test_model
from support.commands import Builder

pytestmark = [pytest.mark.docker, pytest.mark.engine, pytest.mark.network]

RECIPE = """
engine  = "llama-cpp"
version = "sdist"
summary = "the llama.cpp that llama-cpp-python 0.3.36 holds"
license = "MIT"
family  = "llama-cpp"
base    = "cuda-13.0"

[source]
pypi         = "llama-cpp-python"
version      = "0.3.36"
sha256       = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
subdirectory = "vendor/llama.cpp"

[cuda]
arch = ["120"]

[llama]
build_number = 9999        # a number of ours: the sdist does not tell
build_commit = "vendored"

[[cmake]]
targets = ["llama-server", "llama-cli", "llama-bench"]

[image]
repository = "builder-test/real-llama"
tags       = ["sdist"]

[[probe]]
option = "--spec-type"
has    = ["draft-mtp", "draft-dflash"]

[[probe]]
run  = ["llama-server", "--list-devices"]
contains = ["ggml_cuda_init:"]
"""


def test_every_check_passes(builder: Builder, catalog: Path) -> None:
    (catalog / "recipes" / "llama-cpp-sdist.toml").write_text(RECIPE)
    done = builder("build", "llama-cpp-sdist", "--catalog", catalog, "--json", timeout=5400)
    assert done.returncode == 0, done.stderr
    checks = json.loads(done.stdout)["verdict"]["checks"]
    served = [check["subject"] for check in checks if check["kind"] == "serves"]
    assert served[0] == "starts"
    assert served[-1] == "stops"
    assert len(served) == 9


def test_it_is_measured_and_compared(builder: Builder, catalog: Path, tmp_path: Path) -> None:
    """On the tiny model and the CPU: the figures mean nothing, and are the server's own."""
    (catalog / "recipes" / "llama-cpp-sdist.toml").write_text(RECIPE)
    model = tmp_path / "tiny.gguf"
    test_model.write(model)
    for name in ("first", "second"):
        done = builder(
            *("bench", "llama-cpp-sdist", "--catalog", catalog, "--model", model),
            *("--context", "512,1K", "--tokens", "100", "--runs", "4"),
            *("--output-file", tmp_path / f"{name}.json", "--plot", tmp_path / f"{name}.png"),
            *("--", "--cache-type-k", "q8_0"),
        )
        assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "first.json").read_text())
    assert [point["context"] for point in found["points"]] == [512, 1024]
    runs = found["points"][0]["runs"]
    assert {run["timed_by"] for run in runs} == {"server"}
    assert [run["tokens"] for run in runs] == [100] * 4
    assert found["subject"]["flags"][-2:] == ["--cache-type-k", "q8_0"]
    done = builder("bench", "compare", tmp_path / "first.json", tmp_path / "second.json", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 2
