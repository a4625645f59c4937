"""The cards of a machine, as nvidia-smi lists them."""

from __future__ import annotations

import platform
from math import ceil
from pathlib import Path

import pytest

from builder.core.errors import UntriedError, WorldError
from builder.core.platforms import platform_of
from builder.presets import cards
from simulator.selection import Capability
from support.environment import REPOSITORY

LAPTOP = "NVIDIA GeForce RTX 5090 Laptop GPU, 12.0, 580.95.05, 24463\n"


def test_a_known_card_has_the_memory_that_cuda_can_allocate() -> None:
    found = cards.machine_of(REPOSITORY, LAPTOP)
    card = cards.load(REPOSITORY, "5090-laptop")
    assert found.driver == "580.95.05"
    assert (found.cards[0].memory, found.cards[0].context) == (card.memory, card.context)


@pytest.mark.parametrize(
    ("listed", "file"), [(8151, "5060-ti-8gb"), (16311, "5060-ti-16gb"), (12227, "")]
)
def test_cards_of_one_name_are_told_by_their_memory(listed: int, file: str) -> None:
    # The RTX 5060 Ti is sold with 8 and with 16 GB under one name.
    text = f"NVIDIA GeForce RTX 5060 Ti, 12.0, 580.95.05, {listed}\n"
    (found,) = cards.machine_of(REPOSITORY, text).cards
    if file:
        assert found == cards.host_card(cards.load(REPOSITORY, file))
    else:
        assert (found.memory, found.context) == (listed << 20, 0)


def test_an_unknown_card_is_taken_as_nvidia_smi_has_it() -> None:
    text = LAPTOP + "NVIDIA RTX PRO 3000 Blackwell Generation Laptop GPU, 12.0, 580.95.05, 12227\n"
    found = cards.machine_of(REPOSITORY, text)
    assert found.cards[1].capability == Capability(12, 0)
    # As on the card of cards/ that differs most: nvidia-smi's memory is not all for CUDA.
    assert found.cards[1].memory == ceil((12227 << 20) / 1.06)


def test_a_gb10_has_the_memory_of_its_machine() -> None:
    text = "NVIDIA GB10, 12.1, 580.173.02, [N/A]\n"
    (found,) = cards.machine_of(REPOSITORY, text).cards
    total, *_ = Path("/proc/meminfo").read_text().splitlines()
    assert found.capability == Capability(12, 1)
    assert found.memory >> 20 == int(total.split()[1]) >> 10


RTX = "NVIDIA GeForce RTX 5090, 12.0, {}, {}\n"


@pytest.mark.parametrize(
    "unknown", ["[N/A]", "[Not Supported]", "ERR!", "N/A", "", "[GPU is lost]"]
)
def test_what_nvidia_smi_does_not_know_is_unknown(unknown: str) -> None:
    """It was a crash (ValueError), or, of the memory, the machine's own."""
    card = cards.host_card(cards.load(REPOSITORY, "5090"))
    found = cards.machine_of(REPOSITORY, RTX.format(unknown, 32607))
    assert (found.cards, found.driver) == ((card,), "")
    assert "does not know the driver" in found.remarks[0]
    found = cards.machine_of(REPOSITORY, RTX.format("580.95.05", unknown))
    assert (found.cards, found.driver) == ((card,), "580.95.05")
    assert "the memory of the NVIDIA GeForce RTX 5090" in found.remarks[0]
    # A card without a file has none then, and no preset fits it.
    found = cards.machine_of(REPOSITORY, f"NVIDIA A, B, 12.0, 580.95.05, {unknown}\n")
    assert (found.cards[0].name, found.cards[0].memory) == ("NVIDIA A, B", 0)
    # The name tells the capability, and the smaller of two cards that share it.
    text = f"NVIDIA GeForce RTX 5060 Ti, {unknown}, 580.95.05, {unknown}\n"
    small = cards.host_card(cards.load(REPOSITORY, "5060-ti-8gb"))
    assert cards.machine_of(REPOSITORY, text).cards == (small,)


def test_known_values_of_other_cards_are_used() -> None:
    text = RTX.format("[N/A]", 32607) + RTX.format("580.95.05", 32607)
    found = cards.machine_of(REPOSITORY, text)
    assert (found.driver, found.remarks) == ("580.95.05", ())
    text = RTX.format("580.95.05", 32607) + RTX.format("570.10", 32607)
    found = cards.machine_of(REPOSITORY, text)
    assert found.driver == "570.10"
    assert "the oldest counts" in found.remarks[0]
    # A card that nobody knows keeps its number: Docker counts it, too.
    found = cards.machine_of(REPOSITORY, "X, [N/A], [N/A], [N/A]\n" + RTX.format("", 32607))
    assert [card.capability.major for card in found.cards] == [0, 12]


def test_the_platform_of_a_machine_is_its_cards() -> None:
    assert cards.machine_with(REPOSITORY, ["gb10"]).platform == "linux/arm64"
    assert cards.machine_with(REPOSITORY, ["5090"]).platform == "linux/amd64"
    assert cards.machine_of(REPOSITORY, LAPTOP).platform == platform_of(platform.machine())
    gb10 = "NVIDIA GB10, 12.1, 580.173.02, [N/A]\n"
    assert cards.machine_of(REPOSITORY, gb10).platform == "linux/arm64"
    for capability, wanted in (("12.1", "linux/arm64"), ("12.0", "linux/amd64")):
        found = cards.unnamed_card(24 << 30, Capability.parse(capability))
        assert found.platform == wanted


@pytest.mark.parametrize("text", ["No devices were found\n", "A, [N/A], 390.157, 2000\n"])
def test_another_output_is_no_machine(text: str) -> None:
    with pytest.raises(UntriedError):
        cards.machine_of(REPOSITORY, text)


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_machine_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "--query-gpu=name,compute_cap,driver_version,memory.total"
    on_path(tmp_path, monkeypatch, f'test "$1" = {wanted} && echo "{LAPTOP.strip()}"')
    assert cards.this_machine(REPOSITORY) == cards.machine_of(REPOSITORY, LAPTOP)


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "finds no"),
        ("true", "lists no GPU"),
        ("echo what", "unknown format"),
    ],
)
def test_without_a_gpu_it_asks_for_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, what: str
) -> None:
    on_path(tmp_path, monkeypatch, script)
    with pytest.raises(WorldError, match=what) as caught:
        cards.this_machine(REPOSITORY)
    assert "builder choose --card" in caught.value.hint


def test_without_nvidia_smi_it_asks_for_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorldError, match="has no NVIDIA GPU") as caught:
        cards.this_machine(REPOSITORY)
    assert "5090-laptop" in caught.value.hint
