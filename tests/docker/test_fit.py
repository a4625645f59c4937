"""``builder fit`` with a real server on a simulated card: what fits, what does not, and faults."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from builder.checks import serves
from builder.presets import made_models
from support import caches, model_hub
from support.commands import Builder
from support.environment import REPOSITORY
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

FARM = ("recipes", "dockerfiles", "patches", "engines", "cards")
CARD = "5060-ti-16gb"
MIB = 1 << 20
TryFit = Callable[..., CompletedProcess[str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The model that hello serves."""
    file = tmp_path / "hub" / "me" / "Tiny-GGUF" / "tiny.gguf"
    file.parent.mkdir(parents=True)
    serves.write_model(file)
    return file


@pytest.fixture
def try_fit(builder: Builder, hello: dict[str, Any], model: Path) -> Iterator[TryFit]:
    """Runs the command with hello, on the smallest card; nothing of it is left afterwards."""
    target = hello["references"][0]

    def run(*arguments: str, named: str = str(model), card: str = CARD) -> CompletedProcess[str]:
        options = ("--model", named, "--card", card, "--context", "512")
        return builder("fit", target, *options, *arguments)

    yield run
    left = ("--filter=volume=/simulator/lib", f"--filter=ancestor={target}")
    assert docker("ps", "--all", "--quiet", *left) == ""


def test_a_model_of_the_hub_fits(
    try_fit: TryFit, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model_hub.served(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        done = try_fit("--json", named="me/Tiny-GGUF:tiny.gguf")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["largest"] == 2048
    assert found["model"]["size"] == model.stat().st_size
    trial = found["trials"][-1]
    (card,) = trial["cards"]
    assert trial["fits"]
    assert trial["launches"] > 0
    assert trial["filled"] > 128
    assert card["context"] < card["peak"] < card["memory"]
    assert sum(trial["by_kind"].values()) <= card["peak"] - card["context"]


def test_its_paths_are_those_of_a_start_now(
    builder: Builder, hello: dict[str, Any], model: Path
) -> None:
    """hello's kernels are of no path that builder knows: the model and a card decide the rest."""
    options = ("--model", str(model), "--card")
    done = builder("paths", hello["plan"]["name"], *options, CARD, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["by_model"] == {"tiny.gguf": []}
    older = builder("paths", hello["plan"]["name"], *options, "3090")
    assert older.returncode == 3
    assert "it has compute capability 8.6" in older.stderr


def test_two_cards_have_their_memory_added_up(try_fit: TryFit) -> None:
    done = try_fit("--card", "5090", "--context", "2048", "--no-search", "--json")
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads(done.stdout)["trials"]
    assert trial["filled"] > 0.8 * 2048, "its requests are short: several fill the context"
    for kind, size in trial["by_kind"].items():
        assert sum(card["by_kind"].get(kind, 0) for card in trial["cards"]) == size
    names = [card["name"] for card in trial["cards"]]
    assert names == ["NVIDIA GeForce RTX 5060 Ti", "NVIDIA GeForce RTX 5090"]


def test_a_card_without_room_is_told_with_what_was_asked_for(
    try_fit: TryFit, tmp_path: Path
) -> None:
    farm = tmp_path / "farm"
    for name in FARM:
        shutil.copytree(REPOSITORY / name, farm / name, symlinks=True)
    text = (farm / "cards" / f"{CARD}.toml").read_text()
    small = re.sub(r"(?m)^memory = \S+", f"memory = {130 * MIB}", text)
    (farm / "cards" / "small.toml").write_text(small)
    done = try_fit("--catalog", str(farm), card="small")
    assert done.returncode == 15, done.stderr
    assert (
        "tiny.gguf does not fit on NVIDIA GeForce RTX 5060 Ti, 2 GB (0.1 GiB usable)" in done.stderr
    )
    assert re.search(r"no room: [\d.]+ MiB for \S+ by \S+.*, [\d.]+ MiB free", done.stderr)
    assert "does not fit" in done.stdout


def test_an_option_that_the_engine_does_not_know(try_fit: TryFit) -> None:
    done = try_fit("--", "--no-such")
    assert done.returncode == 8
    assert "does not start with tiny.gguf and these options" in done.stderr
    assert "error: unknown --no-such" in done.stderr
    assert "--help` lists the engine's options" in done.stderr


def test_an_engine_that_never_gets_ready(
    builder: Builder, hello: dict[str, Any], model: Path
) -> None:
    deaf = "builder-test/fit-deaf:1"
    dockerfile = f"FROM {hello['references'][0]}\nENV HELLO_ARG_PORT=9\n"
    docker("build", "--quiet", f"--tag={deaf}", "-", text=dockerfile)
    named = ("--model", str(model), "--card", CARD, "--context", "512")
    try:
        done = builder("fit", deaf, *named, "--timeout", "3")
    finally:
        docker("image", "rm", "--force", deaf)
    assert done.returncode == 8, done.stderr
    assert "is not ready to serve 512 tokens in 3 s" in done.stderr
    assert "-> give it more time: --timeout" in done.stderr


def test_an_engine_that_ignores_the_card(try_fit: TryFit) -> None:
    done = try_fit("--", "--device", "cpu")
    assert done.returncode == 7
    assert "does not use the card" in done.stderr


def test_an_engine_that_does_not_load_the_model(try_fit: TryFit, tmp_path: Path) -> None:
    done = try_fit(named=str(made_models.write_shape("qwen3-0.6b", tmp_path / "model.gguf")))
    assert done.returncode == 7
    assert "does not load this model" in done.stderr
    assert re.search(r"the engine put 0\.\d MiB of \d+ MiB of weights on the card", done.stderr)


def test_a_recipe_that_cannot_be_tried_is_refused_before_it_is_built(
    builder: Builder, model: Path
) -> None:
    done = builder("fit", "hami-core-pr188", "--model", str(model), "--card", "5090")
    assert done.returncode == 3
    assert "hami-core-pr188 cannot be tried" in done.stderr
    assert "the recipe does not define how its server is started" in done.stderr


def test_faults_of_the_command_line(try_fit: TryFit, model: Path, tmp_path: Path) -> None:
    older = try_fit(card="3090")
    assert older.returncode == 3
    assert (
        "it has compute capability 8.6; the oldest code of the recipe is for 12.0" in older.stderr
    )

    typo = try_fit(card="5090-latpop")
    assert typo.returncode == 2
    assert "no card is named 5090-latpop; did you mean 5090-laptop?" in typo.stderr

    (cut := tmp_path / "cut.gguf").write_bytes(model.read_bytes()[:-1])
    done = try_fit(named=str(cut))
    assert done.returncode == 5
    assert "cut.gguf is cut" in done.stderr

    absent = try_fit(named="qwen")
    assert absent.returncode == 5
    assert "there is no model qwen" in absent.stderr

    size = try_fit("--context", "32G")
    assert size.returncode == 2
    assert "'32G' is not a number of tokens" in size.stderr.replace("\n", " ")

    draft = try_fit("--draft", str(model))
    assert draft.returncode == 3
    assert "takes no draft model" in draft.stderr


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        *((name, "f16", 1) for name in ("qwen3-0.6b", "qwen3.6-35b-a3b-mtp", "gemma-4-e2b")),
        *(("qwen3.6-27b", kind, number) for kind, number in (("f16", 1), ("q8_0", 8), ("q4_0", 2))),
        *(("gemma-4-26b-a4b", kind, number) for kind, number in (("q8_0", 8), ("q4_0", 2))),
    ],
)
def test_the_cache_of_llama_cpp_has_the_size_of_the_arithmetic(
    builder: Builder, tmp_path: Path, name: str, kind: str, number: int
) -> None:
    """Layers x heads x size of a head x bytes of an element, and what recurrent layers keep."""
    file = made_models.write_shape(name, tmp_path / "model.gguf")
    options = ["--logits_all", "false", "--flash_attn", "true"]
    options += ["--type_k", str(number), "--type_v", str(number)]
    done = builder(
        *("fit", "llama-cpp-python", "--model", str(file), "--card", "5090", "--no-search"),
        *("--context", "8K,32K", "--json", "--", *options),
    )
    assert done.returncode == 0, done.stderr
    for trial in json.loads(done.stdout)["trials"]:
        expected = caches.bytes_of(name, trial["context"], kind, full=True)  # swa_full is on
        assert abs(trial["by_kind"]["KV cache"] - expected) < MIB, trial["context"]
        assert trial["filled"] > 0.98 * trial["context"]
