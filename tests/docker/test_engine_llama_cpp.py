"""A real llama.cpp through its family: the tree that llama-cpp-python's sdist holds.

GitHub is not needed for it, so it can be compiled wherever PyPI answers.  Half an hour; only
with --engine.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from builder.checks import serves
from builder.presets import made_models
from simulator.report import MIB
from support import caches
from support.commands import Builder
from support.environment import REPOSITORY

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
root         = "vendor/llama.cpp"

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
    serves.write_model(model)
    for name in ("first", "second"):
        done = builder(
            *("bench", "llama-cpp-sdist", "--catalog", catalog, "--model", model),
            *("--context", "512,1K", "--tokens", "100", "--runs", "4"),
            *("--json", "--", "--cache-type-k", "q8_0"),
        )
        assert done.returncode == 0, done.stderr
        (tmp_path / f"{name}.json").write_text(done.stdout)
    found = json.loads((tmp_path / "first.json").read_text())
    assert [point["context"] for point in found["points"]] == [512, 1024]
    runs = found["points"][0]["runs"]
    assert {run["timed_by"] for run in runs} == {"server"}
    assert [run["tokens"] for run in runs] == [100] * 4
    assert found["subject"]["flags"][-2:] == ["--cache-type-k", "q8_0"]
    done = builder("compare", tmp_path / "first.json", tmp_path / "second.json", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 2


def test_a_published_preset_fits_and_lies_fail(builder: Builder, catalog: Path) -> None:
    """A published run of 35B-A3B with 262K of context, one with four times that in a larger cache,
    and one of another fork."""
    (catalog / "recipes" / "llama-cpp-sdist.toml").write_text(RECIPE)
    shutil.copytree(REPOSITORY / "cards", catalog / "cards")
    presets = catalog / "presets"
    presets.mkdir()

    def shipped(name: str) -> str:
        text = (REPOSITORY / "presets" / f"{name}.toml").read_text()
        return re.sub(r"(?m)^recipe .*$", 'recipe = "llama-cpp-sdist"', text)

    good = shipped("qwen3.6-35b-a3b-mtp@5090-laptop")
    (presets / "good@5090-laptop.toml").write_text(good)
    done = builder("build", "llama-cpp-sdist", "--catalog", catalog, "--json", timeout=5400)
    assert done.returncode == 0, done.stderr
    use = json.loads(done.stdout)["verdict"]["presets"]["good@5090-laptop"]
    assert abs(use["peak"] - 21.9e9) < 0.1 * 21.9e9  # as published
    large = good.replace('"q4_0"', '"f16"').replace("262144", "1048576")
    (presets / "large@5090-laptop.toml").write_text(large)
    (presets / "fork@5090-laptop.toml").write_text(shipped("qwen3.6-27b-dflash@5090-laptop"))
    done = builder("smoke", "llama-cpp-sdist", "--catalog", catalog, "--json")
    assert done.returncode == 7
    checks = json.loads(done.stdout)["verdict"]["checks"]
    failed = {
        check["subject"]: check["found"]
        for check in checks
        if check["state"] in ("failed", "untried")
    }
    assert failed.keys() == {
        "large@5090-laptop: model",
        "fork@5090-laptop: options",
        "fork@5090-laptop: starts",
    }
    assert re.fullmatch(r"\S+: offloaded \d+/42 layers to GPU", failed["large@5090-laptop: model"])
    assert "--spec-dflash-cross-ctx is not listed" in failed["fork@5090-laptop: options"]
    assert "--cache-type-k does not have turbo3" in failed["fork@5090-laptop: options"]


class Fitted:
    """Tries shapes of models in the real server, on a simulated RTX 5090."""

    def __init__(self, builder: Builder, catalog: Path, folder: Path) -> None:
        (catalog / "recipes" / "llama-cpp-sdist.toml").write_text(RECIPE)
        shutil.copytree(REPOSITORY / "cards", catalog / "cards")
        done = builder("build", "llama-cpp-sdist", "--catalog", catalog, timeout=5400)
        assert done.returncode == 0, done.stderr
        self._builder, self._catalog, self._folder = builder, catalog, folder

    def __call__(self, model: str, *options: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
        """All that ``fit --json`` says; ``more`` are options of fit, ``options`` the engine's."""
        done = self._builder(
            *("fit", "llama-cpp-sdist", "--catalog", self._catalog, "--card", "5090"),
            *("--model", self.file(model), "--context", "8K,32K", "--no-search", "--json", *more),
            *("--", "--parallel", "1", *options),
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        for trial in found["trials"]:
            assert trial["filled"] > 0.98 * trial["context"]
        return found

    def file(self, name: str) -> str:
        return str(made_models.write_shape(name, self._folder / f"{name}.gguf"))


@pytest.fixture
def fitted(builder: Builder, catalog: Path, tmp_path: Path) -> Fitted:
    return Fitted(builder, catalog, tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3.6-35b-a3b", "f16"),
        ("qwen3.6-27b", "q8_0"),
        ("gemma-4-e4b", "f16"),
        ("gemma-4-e2b", "q8_0"),
        ("gemma-4-26b-a4b", "q4_0"),
    ],
)
def test_caches_have_the_size_of_the_arithmetic(fitted: Fitted, name: str, kind: str) -> None:
    """Gemma's layers with a sliding window keep the window alone."""
    found = fitted(name, "--cache-type-k", kind, "--cache-type-v", kind)
    for trial in found["trials"]:
        expected = caches.bytes_of(name, trial["context"], kind)
        assert abs(trial["by_kind"]["KV cache"] - expected) < MIB, trial["context"]
        assert "drafter" not in trial["by_kind"]


def test_a_drafter_and_a_projector_take_memory_of_their_own(fitted: Fitted) -> None:
    drafter, projector = fitted.file("qwen3.6-27b-dflash"), fitted.file("qwen3.6-27b-mmproj")
    found = fitted(
        *("qwen3.6-27b", "--spec-type", "draft-dflash", "--spec-draft-n-max", "3"),
        more=("--draft", drafter, "--mmproj", projector),
    )
    assert found["draft"]["architecture"] == "dflash"
    assert found["projector"]["architecture"] == "clip"
    for trial in found["trials"]:
        kinds = trial["by_kind"]
        expected = caches.bytes_of("qwen3.6-27b", trial["context"], "f16", kept=3)
        assert abs(kinds["KV cache"] - expected) < MIB
        window = 4 * 4096 * min(trial["context"], 2048 + 512)  # bytes: layers x of a cell x cells
        cache = window + 4096 * trial["context"]
        weights = found["draft"]["size"] - found["draft"]["read"]
        assert 0 < kinds["drafter"] - weights - cache < 64 * MIB  # what it computes with
        assert kinds["projector"] > found["projector"]["size"] - found["projector"]["read"]


def test_a_small_model_drafts_for_a_hybrid_one(fitted: Fitted) -> None:
    """After a rejected token llama-server restores the states, and verifies the others again."""
    drafter = fitted.file("qwen3.5-0.8b")
    found = fitted("qwen3.6-27b", "--spec-type", "draft-simple", more=("--draft", drafter))
    assert all(trial["by_kind"]["drafter"] > 0 for trial in found["trials"])


def test_the_mtp_block_of_a_model_is_its_drafter(fitted: Fitted) -> None:
    found = fitted("qwen3.6-27b-mtp", "--spec-type", "draft-mtp", "--spec-draft-n-max", "3")
    without = fitted("qwen3.6-27b-mtp")
    for trial, plain in zip(found["trials"], without["trials"], strict=True):
        kinds = trial["by_kind"]
        expected = caches.bytes_of("qwen3.6-27b-mtp", trial["context"], "f16", kept=3)
        assert abs(kinds["KV cache"] - expected) < MIB
        assert kinds["drafter"] > 4096 * trial["context"]  # the cache of one layer
        assert kinds["weights"] > plain["by_kind"]["weights"] + 200 * MIB  # the block is loaded
        assert "drafter" not in plain["by_kind"]


@pytest.mark.parametrize("name", ["gemma-4-e2b", "gemma-4-e4b", "gemma-4-26b-a4b"])
def test_an_assistant_drafts_with_the_caches_of_the_model(fitted: Fitted, name: str) -> None:
    drafter = fitted.file(f"{name}-assistant")
    found = fitted(name, "--spec-type", "draft-mtp", more=("--draft", drafter))
    for trial in found["trials"]:
        expected = caches.bytes_of(name, trial["context"], "f16")
        assert abs(trial["by_kind"]["KV cache"] - expected) < MIB
        weights = found["draft"]["size"] - found["draft"]["read"]
        assert 0.1 * weights < trial["by_kind"]["drafter"] < weights + 64 * MIB
