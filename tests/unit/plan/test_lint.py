"""Warnings on recipes that build, and leave something unchecked."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from support.commands import Builder
from support.environment import REPOSITORY


def test_the_recipes_here_have_no_warnings(builder: Builder) -> None:
    done = builder("recipe", "check", "--strict")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    done = builder("recipe", "check", "nobody")
    assert done.returncode == 3
    assert "no recipe is named nobody" in done.stderr


def test_a_gap_without_a_reason_is_a_warning_and_with_strict_an_error(
    builder: Builder, catalog: Path
) -> None:
    for name, key in (("buun-b9304", "no_probe"), ("lucebox-f12a87c", "no_serve")):
        text = (REPOSITORY / "recipes" / f"{name}.toml").read_text()
        lines = [line for line in text.splitlines() if not line.startswith(key)]
        assert len(lines) < len(text.splitlines())
        (catalog / "recipes" / f"{name}.toml").write_text("\n".join(lines))
    for name in ("turboquant-69d8e4b", "beellama-0.1.2"):
        shutil.copy(REPOSITORY / "recipes" / f"{name}.toml", catalog / "recipes")
    shutil.copytree(REPOSITORY / "patches", catalog / "patches")
    shutil.copytree(REPOSITORY / "recipes/locks", catalog / "recipes/locks", dirs_exist_ok=True)
    done = builder("recipe", "check", cwd=catalog)
    assert done.returncode == 0, done.stderr
    *probes, serve = done.stdout.splitlines()
    (probe,) = [line for line in probes if "buun-draft-count" in line]
    assert re.fullmatch(
        r"recipes/buun-b9304\.toml:\d+: patch\.\d: file buun-draft-count\.patch has no probe, and "
        r"no_probe does not say why \(warning\)",
        probe,
    ), "a path is shown as it is from here"
    assert "recipes/lucebox-f12a87c.toml:" in serve
    assert "no [serve]: the server is never started, and no_serve does not say why" in serve
    assert builder("recipe", "check", "--catalog", catalog).stdout.startswith(f"{catalog}/recipes/")
    done = builder("recipe", "check", "--strict", "--catalog", catalog)
    assert done.returncode == 3
    assert "2 of 4 recipes are invalid: buun-b9304, lucebox-f12a87c" in done.stderr
    done = builder("recipe", "check", "--strict", "turboquant", "--catalog", catalog)
    assert done.returncode == 0


def test_a_reason_beside_a_probe_is_refused(builder: Builder, catalog: Path) -> None:
    text = (REPOSITORY / "recipes/buun-b9304.toml").read_text()
    assert "\nno_probe" in text
    both = text.replace("\nno_probe", '\nprobe     = { option = "--x" }\nno_probe')
    (catalog / "recipes/buun-b9304.toml").write_text(both)
    done = builder("recipe", "check", "--catalog", catalog)
    assert done.returncode == 3
    assert "no_probe says why there is no probe: leave one of them out" in done.stdout


def test_presets_are_checked_with_their_recipe(builder: Builder, catalog: Path) -> None:
    recipe = "recipes/turboquant-69d8e4b.toml"
    (catalog / recipe).write_text((REPOSITORY / recipe).read_text())
    shutil.copytree(REPOSITORY / "patches", catalog / "patches")
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
    shutil.copytree(REPOSITORY / "patches", catalog / "patches")
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
    shutil.copytree(REPOSITORY / "patches", catalog / "patches")
    (catalog / "presets").mkdir()
    card = "5090" if cards == 1 else f"{cards}x5090"
    (catalog / "presets" / f"m@{card}.toml").write_text(
        f'recipe = "turboquant-69d8e4b"\nsummary = "x"\ncard = "5090"\ncards = {cards}\n'
        f'model = {{ name = "x" }}\n[serve]\n{serve}\n'
    )
    done = builder("recipe", "check", f"m@{card}", "--catalog", catalog)
    assert done.returncode == 0, done.stdout
    assert ("the image has no NCCL" in done.stdout) is doubtful
