"""A real llama.cpp through its family: the tree that llama-cpp-python's sdist holds.

GitHub is not needed for it, so it can be compiled wherever PyPI answers.  Half an hour; only
with --engine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Builder
from serving import check_answers, check_stops, docker, server

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
says = ["ggml_cuda_init:"]
"""


def test_it_serves_as_a_user_without_rights(
    builder: Builder, catalogue: Path, tmp_path: Path
) -> None:
    (catalogue / "recipes" / "llama-cpp-sdist.toml").write_text(RECIPE)
    done = builder("build", "llama-cpp-sdist", "--catalogue", catalogue, "--json", timeout=5400)
    assert done.returncode == 0, done.stderr
    image = json.loads(done.stdout)["references"][0]
    with server(image, tmp_path, 8080, "health", "--ctx-size", "256") as (name, url):
        check_answers(name, url)
        assert docker("exec", name, "/usr/local/bin/healthcheck", "8080", "health") == ""
        check_stops(name)
