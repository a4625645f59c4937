"""studies/wheels.py reads the wheels of a base, and checks them by the recipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.environment import REPOSITORY
from support.family_recipes import HEAD, OVERLAY
from support.fatbins import ELF, FLAG_A, PTX, entry, library, region
from support.indexes import Index, served, wheel

CODE = {
    "vllm/late.so": library(region(entry(PTX, 80), entry(ELF, 80, 0, bytes(99 << 10)))).getvalue(),
    "vllm/dead.so": library(region(entry(ELF, 90, FLAG_A), entry(ELF, 80))).getvalue(),
}
FLASHINFER = {"flashinfer/jit/cpp_ext.py": b""}
NVCC = {"nvidia/cu13/bin/nvcc": b"x"}
BASE = """
name    = "wheels"
summary = "x"
license = "MIT"
family  = "python-wheels"
base    = "cuda-13.0"

[python]
lock         = "locks/wheels.toml"
requirements = ["vllm==1.0", "cuda-toolkit[nvcc]"]
capabilities = ["12.0"]
nvcc         = true

[[python.dead]]
path = "vllm/dead.so"
why  = "x"
"""
ACCEPT = '[[accept]]\ncheck = "code paths"\npath = "/*/vllm/{}.so"\nwhy = "because"\n'


def measured(
    catalog: Path, monkeypatch: pytest.MonkeyPatch, accepted: list[str], *wheels: str
) -> tuple[int, Any]:
    """Exit code and output for a recipe that accepts libraries."""
    recipe = HEAD.format(family="vllm-overlay", image="", vmm="true", cuda="120")
    recipe = recipe.replace('"cuda-13.0"', '"wheels"') + '[source]\ninstalled = "vllm"\n' + OVERLAY
    (catalog / "recipes/x-1.toml").write_text(recipe + "".join(map(ACCEPT.format, accepted)))
    (catalog / "recipes/bases/wheels.toml").write_text(BASE)
    with served() as index:
        (catalog / "recipes/bases/locks/wheels.toml").write_text(locked(index))
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        command = [sys.executable, "studies/wheels.py", "x-1", *wheels, "--json"]
        command += ["--catalog", str(catalog)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def locked(index: Index) -> str:
    text = 'python = "3.13"\n'
    for name, files in (("vllm", CODE), ("flashinfer", FLASHINFER), ("nvidia_cuda_nvcc", NVCC)):
        sha256 = index.put(name, "1.0", wheel(name, "1.0", files))
        project = name.replace("_", "-")
        text += f'[[runtime]]\nname = "{project}"\nversion = "1.0"\nsha256 = "{sha256}"\n'
    return text


def test_what_the_recipe_does_not_accept_fails(
    catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, found = measured(catalog, monkeypatch, ["dead", "gone"])
    assert status == 1
    failed = {
        each["subject"]: each["found"] for each in found["checks"] if each["state"] == "failed"
    }
    assert set(failed) == {
        "the driver compiles nothing for 12.0",
        "code paths /*/vllm/gone.so",
        "the toolkit of nvcc",
        "nvcc for FlashInfer",
    }
    site = "/opt/engine/lib/python3.13/site-packages"
    late = failed["the driver compiles nothing for 12.0"]
    assert late.startswith(f"{site}/vllm/late.so: 0.0 MB of PTX")
    passed = {each["subject"]: each["found"] for each in found["checks"]}
    assert "0.1 MB was removed" in passed["every library has code for 12.0"]
    assert "accepted: 1 (because)" in passed["every library has code for 12.0"]
    assert "/opt/engine/cuda/bin/nvcc" in failed["nvcc for FlashInfer"]
    sizes = {each["code"]["path"]: each for each in found["libraries"]}
    assert sizes["vllm/late.so"]["code"]["dead"] == 99 << 10
    assert sizes["vllm/late.so"]["after"] < sizes["vllm/late.so"]["before"]


def test_named_wheels_are_measured_alone(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, found = measured(catalog, monkeypatch, [], "vllm")
    assert (status, found["checks"]) == (0, [])
    assert {each["wheel"] for each in found["libraries"]} == {"vllm"}
    assert not measured(catalog, monkeypatch, [], "flashinfer")[1]["libraries"]
