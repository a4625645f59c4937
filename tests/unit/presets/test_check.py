"""Which cards of a machine a run gets, and what stands in its way."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from builder.core.errors import BuilderError, WorldError
from builder.core.settings import Settings
from builder.presets.cards import HostCard, Machine, machine_with
from builder.presets.images import LaunchRequest, prepared
from builder.presets.run import cards_of, port_faults, question_of, require
from builder.presets.schema import PresetUse
from simulator.selection import Capability
from support.environment import REPOSITORY
from support.preset_uses import use_of
from support.services import BASE
from support.shipped import RECIPES

SETTINGS = Settings(state_dir=REPOSITORY / "none")
Chosen = tuple[tuple[int, ...], list[BuilderError]]
ALL: Chosen = ((), [])
"""All cards of the machine, and no fault."""
PRESET = "qwen3.6-35b-a3b-mtp@5090-laptop"
TWO = "qwen3.6-35b-a3b-awq-mtp@2x3090"


def chosen(
    target: str,
    *cards: str,
    driver: str = "590.10",
    card: str = "auto",
    context: int | None = None,
    trial: PresetUse | None = None,
) -> Chosen:
    here = machine_with(REPOSITORY, cards, driver)
    return chosen_on(here, LaunchRequest(target, context=context), card, trial)


def chosen_on(
    here: Machine, wanted: LaunchRequest, card: str = "auto", trial: PresetUse | None = None
) -> Chosen:
    job = prepared(RECIPES, wanted, SETTINGS, print)
    question = replace(question_of(job), trials={wanted.target: trial} if trial else {})
    return cards_of(here, job, card, question)


def why(found: Chosen) -> str:
    (fault,) = found[1]
    assert found[0] == ()
    return fault.what


def test_the_only_card_is_not_numbered() -> None:
    assert chosen(PRESET, "5090-laptop") == ALL


def test_the_first_card_that_suffices_is_taken() -> None:
    assert chosen(PRESET, "5080", "3090", "5090-laptop", "5090")[0] == (2,)
    assert chosen(PRESET, "5080", "5090-laptop", "5090", card="5090")[0] == (2,)
    assert chosen("hello-sm120", "3090", "5080")[0] == (1,)


def test_a_card_that_the_machine_does_not_have() -> None:
    found = chosen(PRESET, "5090", card="5080")
    assert why(found) == "this machine has no card 5080"
    assert found[1][0].hint == "it has: NVIDIA GeForce RTX 5090"


def test_a_card_of_the_same_name_is_another_one() -> None:
    small = chosen("hello-sm120", "5060-ti-16gb", "5060-ti-8gb", card="5060-ti-8gb")
    assert small[0] == (1,)


def test_a_card_with_too_little_memory() -> None:
    found = why(chosen(PRESET, "5080"))
    assert "RTX 5080: its weights and its cache take 16.9 GiB at least; this card has" in found


def test_a_larger_context_is_the_users_choice_unless_it_was_published_and_too_large() -> None:
    assert chosen("gemma-4-26b-a4b-mtp@5090-laptop", "5090", context=200_000) == ALL
    found = why(chosen(PRESET, "5090-laptop", context=400_000))
    assert "its model was trained for 262144 tokens of context, not for 400000" in found
    narrow = "qwen3.6-27b-mtp-128k@5090-laptop"
    assert chosen(narrow, "5090-laptop", context=65536) == ALL
    text = why(chosen(narrow, "5090-laptop", context=262144))
    assert "the published 262144 did not fit the 5090-laptop" in text


def test_the_larger_of_a_recorded_trial_and_the_source_counts() -> None:
    small, large = use_of(20 * 10**9, context=262144), use_of(10**11, context=262144)
    assert chosen(PRESET, "5090-laptop", trial=small) == ALL
    assert "it takes 93.1 GiB (as tried)" in why(chosen(PRESET, "5090", trial=large))
    less = why(chosen("qwen3.6-27b-dflash-buun@5090-laptop", "5080", trial=use_of(16 * 10**9)))
    assert "at least; this card has" in less


@pytest.mark.parametrize("target", [PRESET, "hello-sm120"])
def test_a_card_without_code_and_an_old_driver(target: str) -> None:
    assert "has no code for compute capability 8.6" in why(chosen(target, "3090"))
    old = chosen(target, "5090", "5090", driver="570.86")
    assert why(old) == "the driver 570.86 is too old: the image needs 580 or newer"
    assert old[1][0].hint == "install NVIDIA's driver 580 or newer"


def test_a_card_of_the_second_platform() -> None:
    gb10 = HostCard("NVIDIA GB10", Capability(12, 1), 128 << 30, 0)
    here = Machine((gb10,), "580.173.02")
    for target, able in (("llama-cpp-b9831", True), ("llama-cpp-b9397", False)):
        found = chosen_on(here, LaunchRequest(target))
        assert (found == ALL) is able
    assert "no code for compute capability 12.1, only sm_120a" in why(found)


def test_two_cards() -> None:
    assert "needs 2 cards" in why(chosen(TWO, "5090"))
    assert chosen(TWO, "5090", "5090")[0] == ()
    assert chosen(TWO, "5090", "5090", "5090")[0] == (0, 1)
    assert chosen(TWO, "3090", "5090", "5090")[0] == (1, 2)


def test_a_port_that_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        (fault,) = port_faults(replace(BASE, published=port))
    assert fault.what == f"port {port} of 127.0.0.1 cannot be used"
    assert fault.why == "Address already in use"
    assert list(port_faults(replace(BASE, published=port))) == []


def test_all_faults_are_told_with_their_next_steps() -> None:
    require("a", [])
    with pytest.raises(WorldError) as caught:
        require("a", [WorldError("no GPU", hint="buy one"), WorldError("no", "image")])
    assert str(caught.value) == "a cannot run here\nno GPU\n  -> buy one\nno: image"
