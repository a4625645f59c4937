"""Runs that are proposed where no preset fits: of files that the shapes list."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from builder.presets import cards, proposals, shapes
from builder.presets.choose import Known, known
from builder.presets.proposals import Proposal, Unserved
from support.environment import REPOSITORY
from support.shipped import PRESETS, RECIPES

MIB = 1 << 20
SMALL = sorted(
    name
    for name, card in cards.every(REPOSITORY).items()
    if card.capability == "12.0" and card.memory < 17 << 30
)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """Without the presets that were composed for small cards: they leave little to propose."""
    entries = [each for each in PRESETS.valid() if not each.preset.composed]
    return known(RECIPES, entries, tmp_path_factory.mktemp("state"))


def proposed(
    facts: Known, card: str, context: int = 0, driver: str = ""
) -> tuple[dict[str, Proposal], dict[str, Unserved]]:
    answer = facts.choice(cards.machine_with(REPOSITORY, [card], driver), context)
    found, without = proposals.proposals(facts, answer, Path("/m"), card)
    models = {each.short_name for each in (*answer.recommended, *found, *without)}
    assert models == {*facts.models.values()}, "each model once"
    assert len(answer.recommended) + len(found) + len(without) == len(models)
    return {each.short_name: each for each in found}, {each.short_name: each for each in without}


@pytest.mark.parametrize("card", SMALL)
def test_each_small_card_sees_each_model_once_and_what_is_proposed_fits(
    facts: Known, card: str
) -> None:
    memory = cards.load(REPOSITORY, card).memory
    found, without = proposed(facts, card)
    for each in found.values():
        assert each.memory <= memory == each.room
        assert each.context >= 8192
        assert "Q1" not in each.quantization
        # Weights and a cache of 16 bits alone are no more than what is said.
        shape = shapes.shape_of(each.short_name)
        cache = shapes.cache_bytes(shape, 16, 16, each.context)
        host = each.host_memory or 0
        rows = sum(
            shapes.number(shape, "embedding_length", 0) * 2**18 * 17 // 16
            for name in shapes.ROWS
            if name in shape.tensors
        )
        per_layer = 2**30 * 3 if "per_layer_token_embd.weight" in shape.tensors else 0
        assert each.memory > each.download - host - rows - per_layer + cache
        assert (each.host_memory is None) == ("--n-cpu-moe" not in each.command)
        assert each.own is not None or each.not_computed
    for lost in without.values():
        assert lost.why
        assert lost.command.endswith(f"--card {card}")


def test_the_largest_model_is_proposed_first(facts: Known) -> None:
    assert [*proposed(facts, "5070")[0]] == ["qwen3.6-35b-a3b", "qwen3.6-27b", "gemma-4-e4b"]


def test_the_largest_file_that_leaves_room_for_a_context_is_proposed(facts: Known) -> None:
    run = proposed(facts, "5070")[0]["qwen3.6-27b"]
    assert run.quantization == "UD-IQ2_XXS"
    larger = next(
        each for each in shapes.listed_files("qwen3.6-27b") if each.quantization == "UD-IQ3_XXS"
    )
    shape, card = shapes.shape_of("qwen3.6-27b"), cards.load(REPOSITORY, "5070")
    size = larger.known_size or 0
    assert proposals.memory(shape, size, 8192) + card.context > card.memory
    file = "/m/unsloth/Qwen3.6-27B-GGUF/Qwen3.6-27B-UD-IQ2_XXS.gguf"
    words = shlex.split(run.command)
    assert words[1:5] == ["run", "llama-cpp-0.5.0-dev", "--model", file]
    assert words[5:] == ["--context", str(run.context), "--", "--parallel", "1"]
    assert shlex.split(run.get) == [
        *("hf", "download", "unsloth/Qwen3.6-27B-GGUF", "Qwen3.6-27B-UD-IQ2_XXS.gguf"),
        *("--local-dir", "/m/unsloth/Qwen3.6-27B-GGUF"),
    ]


def test_experts_stay_in_the_machines_memory_where_no_file_fits(facts: Known) -> None:
    run = proposed(facts, "5060")[0]["qwen3.6-35b-a3b"]
    words = shlex.split(run.command)
    assert words[-2:] == ["--n-cpu-moe", str(run.offloaded)]
    shape, card = shapes.shape_of("qwen3.6-35b-a3b"), cards.load(REPOSITORY, "5060")
    fewer = proposals.memory(shape, run.download, run.context, run.offloaded - 1)
    assert fewer + card.context > card.memory >= run.memory
    # 40 layers of experts are nearly all of the file.
    assert run.host_memory is not None
    assert 0.9 < run.host_memory / run.offloaded * 40 / run.download < 1


def test_a_context_that_is_asked_for_is_proposed_or_refused(facts: Known) -> None:
    assert proposed(facts, "5070", 16000)[0]["qwen3.6-27b"].context == 16000
    found, without = proposed(facts, "5070", 262144)
    assert "qwen3.6-27b" not in found
    assert "with 262144 tokens, this card has 11.5 GiB" in without["qwen3.6-27b"].why
    assert without["gemma-4-e4b"].why == "it was trained for 131072 tokens, not for 262144"


def test_nothing_is_proposed_without_an_image_for_the_card(facts: Known) -> None:
    found, without = proposed(facts, "5060", driver="535.12")
    assert not found
    for each in without.values():
        assert each.why.endswith("; no image of llama.cpp is for this card and driver")


@pytest.mark.parametrize(
    ("model", "quantization", "context", "offloaded", "mib"),
    [
        ("qwen3.6-27b", "UD-IQ2_XXS", 24576, 0, 10780),
        ("qwen3.6-35b-a3b", "UD-IQ2_XXS", 24576, 0, 11224),
        ("gemma-4-26b-a4b", "UD-IQ2_XXS", 49152, 0, 11274),
        ("gemma-4-e4b", "Q8_0", 32768, 0, 6172),
        ("qwen3.6-35b-a3b", "UD-IQ4_NL", 32768, 29, 6330),
    ],
)
def test_the_memory_is_no_less_than_what_fit_measured(
    model: str, quantization: str, context: int, offloaded: int, mib: int
) -> None:
    """Peaks of `fit` without CUDA's context: llama.cpp b9261, files of these sizes, full context,
    --parallel 1, on the RTX 5070 and 5060."""
    listed = shapes.listed_files(model)
    file = next(each for each in listed if each.quantization == quantization)
    found = proposals.memory(shapes.shape_of(model), file.bytes, context, offloaded)
    assert mib * MIB < found < 1.25 * mib * MIB
