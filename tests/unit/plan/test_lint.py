"""Warnings on recipes that build, and leave something unchecked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import Builder
from support.environment import REPOSITORY


def test_a_patch_without_a_probe_is_a_warning_and_with_strict_an_error(builder: Builder) -> None:
    done = builder("recipe", "check")
    assert done.returncode == 0, done.stderr
    assert "atomic-b8995.toml:" in done.stdout
    assert "pull 6 has no probe" in done.stdout
    # A server that a family starts with a folder needs no [serve].
    unstarted = [line for line in done.stdout.splitlines() if "the server is never started" in line]
    assert [line.partition(".toml")[0].rpartition("/")[2] for line in unstarted] == [
        "lucebox-f12a87c"
    ]
    done = builder("recipe", "check", "--strict")
    assert done.returncode == 3
    assert "recipes are invalid: atomic-b8995, beellama-0.1.1, beellama-0.1.2," in done.stderr
    assert builder("recipe", "check", "--strict", "turboquant-69d8e4b").returncode == 0
    done = builder("recipe", "check", "--strict", "turboquant-69d8e4b", "atomic-b8995")
    assert "1 of 2 recipes is invalid: atomic-b8995" in done.stderr
    done = builder("recipe", "check", "nobody")
    assert done.returncode == 3
    assert "no recipe is named nobody" in done.stderr


def test_presets_are_checked_with_their_recipe(builder: Builder, catalog: Path) -> None:
    recipe = "recipes/turboquant-69d8e4b.toml"
    (catalog / recipe).write_text((REPOSITORY / recipe).read_text())
    (catalog / "presets").mkdir()
    file = catalog / "presets" / "bad@5090.toml"
    file.write_text(
        'recipe = "turboquant-69d8e4b"\nsummary = "x"\ncard = "5080"\nmodel = { name = "x" }\n'
    )
    words = "bad@5090.toml:3: card: the file must be MODEL@5080.toml, not bad@5090.toml"
    for names in ([], ["turboquant"], ["bad@5090"]):
        done = builder("recipe", "check", *names, "--catalog", catalog)
        assert done.returncode == 3
        assert words in done.stdout
        assert "1 of 1 preset is invalid: bad@5090" in done.stderr
    done = builder("recipe", "check", "bad@5090", "--json", "--catalog", catalog)
    (found,) = json.loads(done.stdout)
    assert (found["name"], found["warnings"]) == ("bad@5090", [])
    assert words in found["error"]
    (misnamed := file.with_name("bad.toml")).write_text(file.read_text())
    done = builder("recipe", "check", "bad", "--catalog", catalog)
    assert "bad.toml:3: card: the file must be MODEL@5080.toml, not bad.toml" in done.stdout
    misnamed.unlink()
    file.rename(file.with_name("bad@5080.toml"))
    done = builder("recipe", "check", "turboquant", "--catalog", catalog)
    assert done.returncode == 0
    assert "valid: 1 recipe and 1 preset" in done.stderr


TABLE = """\
recipe = "fork-1"
source = "https://example.org/fork"
tried = "2026-11-23"
architecture = "compute_120a"

[[compiler]]
nvcc = "{nvcc}"
released = "2026-03-09"

[compiler.nmse]
q4_0 = 1.0e-07
iq2_s = 0.87

[compiler.ended]
iq3_s = "out of bounds, PTX line 7: ld"
q6_K = "not computed, PTX line 8: mbarrier"
"""
THREADS = """
[[thread]]
thread = "ggml-org/llama.cpp#28581"
about = "garbage"
nvcc = ["13.0.88"]
types = ["iq1_s", "iq3_s"]

[[thread]]
thread = "ggml-org/llama.cpp#19168"
about = "something else"
nvcc = ["13.0.88"]
types = ["mmq mxfp4 x8"]
"""


def test_a_base_whose_nvcc_miscompiles_is_a_warning(builder: Builder, catalog: Path) -> None:
    recipe = "recipes/llama-cpp-b9831.toml"
    (catalog / recipe).write_text((REPOSITORY / recipe).read_text())
    (folder := catalog / "compilers").mkdir()
    (folder / "fork-1.toml").write_text(TABLE.format(nvcc="13.0.48"))
    (folder / "threads.toml").write_text(THREADS)
    done = builder("recipe", "check", "--strict", "--catalog", catalog)
    assert done.returncode == 0, done.stdout
    (folder / "fork-1.toml").write_text(TABLE.format(nvcc="13.0.88"))
    done = builder("recipe", "check", "--strict", "--catalog", catalog)
    assert done.returncode == 3
    base = (catalog / "recipes" / "bases" / "cuda-13.0.toml").read_text().splitlines()
    line = base.index('name    = "nvidia-cuda-nvcc"') + 2
    words = "nvcc 13.0.88 miscompiles iq2_s, iq3_s of fork-1: ggml-org/llama.cpp#28581"
    assert f"cuda-13.0.toml:{line}: wheel.0.version: {words} (warning)" in done.stdout
    assert "19168" not in done.stdout
    (folder / "fork-1.toml").write_text("recipe = 1\n")
    done = builder("recipe", "check", "--catalog", catalog)
    assert done.returncode == 3
    assert "fork-1.toml is invalid" in done.stderr
    assert "fork-1.toml:1: recipe:" in done.stderr


@pytest.mark.parametrize(
    ("cards", "serve", "doubtful"),
    [
        (2, 'arguments = ["--split-mode", "tensor"]', True),
        (2, 'arguments = ["-sm", "tensor"]', True),
        (2, 'environment = { LLAMA_ARG_SPLIT_MODE = "tensor" }', True),
        (2, 'arguments = ["--split-mode", "layer"]', False),
        (1, 'arguments = ["--split-mode", "tensor"]', False),
    ],
)
def test_tensor_parallelism_without_nccl_is_a_warning(
    builder: Builder, catalog: Path, cards: int, serve: str, doubtful: bool
) -> None:
    recipe = "recipes/turboquant-69d8e4b.toml"
    (catalog / recipe).write_text((REPOSITORY / recipe).read_text())
    (catalog / "presets").mkdir()
    card = "5090" if cards == 1 else f"{cards}x5090"
    (catalog / "presets" / f"m@{card}.toml").write_text(
        f'recipe = "turboquant-69d8e4b"\nsummary = "x"\ncard = "5090"\ncards = {cards}\n'
        f'model = {{ name = "x" }}\n[serve]\n{serve}\n'
    )
    done = builder("recipe", "check", f"m@{card}", "--catalog", catalog)
    assert done.returncode == 0, done.stdout
    assert ("the image has no NCCL" in done.stdout) is doubtful
