"""Presets on simulated cards: one that fits, and each lie that a preset may tell of its card.

The server is the good one of ``shaped_card``; it does not read its model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.checks.device import check_preset
from builder.checks.subject import DeviceTest
from builder.checks.verdict import Check
from builder.image.contents import Contents
from builder.presets import cards
from builder.presets.cards import Card
from builder.presets.schema import Preset, PresetUse
from support.environment import REPOSITORY, SHARED_CACHE
from support.shaped_card import recipe_of
from support.smoke_tests import context_of

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

CARD = cards.load(REPOSITORY, "5060-ti-16gb")
PRESET = """
recipe  = "shaped"
summary = "a run"
card    = "5060-ti-16gb"
model   = { name = "M", repository = "unsloth/Qwen3.5-0.8B-GGUF", published_size = "0.6 GB" }
serve   = { arguments = ["-ngl", "99"], context = 4096 }
memory  = { total = 0.5 }
"""
TryPreset = Callable[..., tuple[PresetUse | None, dict[str, Check]]]


@pytest.fixture
def try_preset(
    shaped: str, shaped_contents: Contents, cuda_base: dict[str, str], tmp_path: Path
) -> TryPreset:
    """What a preset with these changes took, and its checks by subject."""

    def run(simulated: Card = CARD, **changes: Any) -> tuple[PresetUse | None, dict[str, Check]]:
        preset = Preset.model_validate(tomllib.loads(PRESET) | changes)
        test = DeviceTest(None, SHARED_CACHE, lambda _: None, {"5060-ti-16gb": simulated})
        more = {"devel": cuda_base["devel"], "device_test": test, "presets": {"m": preset}}
        context = context_of(shaped_contents, recipe_of({}), tmp_path, shaped, **more)
        found = {each.subject: each for each in check_preset(context)}
        return context.presets.get("m"), found

    return run


def failed(found: dict[str, Check]) -> set[str]:
    return {subject for subject, each in found.items() if not each.passed}


def test_a_preset_that_fits_has_its_memory_in_the_verdict(try_preset: TryPreset) -> None:
    use, found = try_preset()
    assert list(found) == ["m: starts", "m: model", "m: answers", "m: full context", "m: memory"]
    assert failed(found) == set(), found
    assert {each.kind for each in found.values()} == {"preset"}
    assert use is not None
    assert (use.card, use.cards, use.context) == (CARD.name, 1, 4096)
    assert use.own < use.peak < use.memory == CARD.memory
    assert 4000 < use.filled < 4096
    assert len(use.identity) == 64


def test_a_large_context_is_tried_beside_a_small_one(try_preset: TryPreset) -> None:
    use, found = try_preset(serve={"arguments": ["-ngl", "99"], "context": 16384})
    assert [*found][-1] == "m: memory with 8192 tokens"
    assert failed(found) == set(), found
    assert use is not None
    assert use.smaller is not None
    assert (use.context, use.smaller.context) == (16384, 8192)
    assert use.own < use.smaller.peak <= use.peak


def test_a_prompt_that_fills_the_context_must_have_room(try_preset: TryPreset) -> None:
    faulty = {"SHAPED_FAULT": "prompt"}
    serve = {"arguments": ["-ngl", "99"], "context": 4096, "environment": faulty}
    use, found = try_preset(serve=serve)
    assert failed(found) == set(), found
    assert use is not None
    tight = CARD.model_copy(update={"memory": use.peak + (64 << 20)})
    use, found = try_preset(simulated=tight, serve=serve)
    assert failed(found) == {"m: full context"}
    assert found["m: full context"].found.startswith("no room: ")
    assert use is not None
    assert use.filled == 0
    # A launch that the card refuses counts, also where the server answers.
    serve["environment"] = {"SHAPED_FAULT": "threads"}
    _, found = try_preset(serve=serve)
    assert "m: full context" in failed(found)


def test_two_cards_have_their_memory_added_up(try_preset: TryPreset) -> None:
    use, found = try_preset(cards=2)
    assert failed(found) == set(), found
    assert use is not None
    assert use.memory == 2 * CARD.memory


def test_more_memory_than_published_is_named(try_preset: TryPreset) -> None:
    _, found = try_preset(memory={"total": 0.05})
    assert failed(found) == {"m: memory"}
    assert found["m: memory"].found.startswith("it takes ")
    assert "MiB more than published" in found["m: memory"].found
    assert "48 MiB as published and 10% more" in found["m: memory"].expected


def test_a_card_without_room_is_named(try_preset: TryPreset) -> None:
    small = CARD.model_copy(update={"memory": CARD.context + 4096})
    _, found = try_preset(simulated=small)
    assert "no room: " in "; ".join(each.found for each in found.values() if not each.passed)


def test_a_model_that_the_source_may_have_rounded_up_gets_a_second_trial(
    try_preset: TryPreset,
) -> None:
    serve = {
        "arguments": ["-ngl", "99"],
        "context": 4096,
        "environment": {"SHAPED_FAULT": "weights"},
    }
    room = CARD.context + (4 << 20)
    for size, fits in ((580 << 20, True), (500 << 20, False)):
        use, found = try_preset(
            simulated=CARD.model_copy(update={"memory": room + size}), serve=serve, memory=None
        )
        lacking = "; ".join(each.found for each in found.values() if not each.passed)
        if fits:  # 0.6 GB are 572 MiB, 0.55 GB 525 MiB
            assert failed(found) == set(), found
            assert use is not None
        else:
            assert "no room: " in lacking


def test_layers_on_the_cpu_fail(try_preset: TryPreset) -> None:
    use, found = try_preset(serve={"arguments": ["-ngl", "0"], "context": 4096})
    assert failed(found) == {"m: model"}
    assert found["m: model"].found == "offloaded 0/1 layers to GPU"
    assert use is None


def test_an_option_that_the_engine_refuses_fails(try_preset: TryPreset) -> None:
    _, found = try_preset(serve={"arguments": ["--spec-type", "dflash"]})
    assert failed(found) == {"m: starts"}
    assert "ended with exit status 1" in found["m: starts"].found


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"name": "M"}}, "the preset does not name a file of M"),
        (
            {"model": {"name": "M", "repository": "unsloth/Qwen3.5-0.8B-GGUF"}},
            "the size of unsloth/Qwen3.5-0.8B-GGUF is not known",
        ),
        ({"card": "h100-80gb"}, "there are no figures of the h100-80gb in cards/"),
    ],
)
def test_a_preset_that_cannot_be_tried_says_why(
    try_preset: TryPreset, changes: dict[str, Any], reason: str
) -> None:
    _, found = try_preset(**changes)
    assert (found["m"].kind, found["m"].state) == ("preset", "skipped")
    assert found["m"].found == reason


def test_a_card_that_the_image_has_no_code_for_is_not_tried(try_preset: TryPreset) -> None:
    _, found = try_preset(simulated=cards.load(REPOSITORY, "3090"))
    assert "no code for compute capability 8.6" in found["m"].found
