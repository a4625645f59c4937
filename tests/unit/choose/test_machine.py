"""The cards of a machine, as nvidia-smi lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.choose import machine
from builder.errors import UntriedError, WorldError
from builder.kernels.selection import Capability
from builder.simulator import cards
from support.environment import REPOSITORY

LAPTOP = "NVIDIA GeForce RTX 5090 Laptop GPU, 12.0, 580.95.05, 24463\n"


def test_a_known_card_has_the_memory_that_cuda_can_allocate() -> None:
    found = machine.machine_of(REPOSITORY, LAPTOP)
    card = cards.load(REPOSITORY, "5090-laptop")
    assert found.driver == "580.95.05"
    assert (found.cards[0].memory, found.cards[0].context) == (card.memory, card.context)


@pytest.mark.parametrize(
    ("listed", "file"), [(8151, "5060-ti-8gb"), (16311, "5060-ti-16gb"), (12227, "")]
)
def test_cards_of_one_name_are_told_by_their_memory(listed: int, file: str) -> None:
    # The RTX 5060 Ti is sold with 8 and with 16 GB under one name.
    text = f"NVIDIA GeForce RTX 5060 Ti, 12.0, 580.95.05, {listed}\n"
    (found,) = machine.machine_of(REPOSITORY, text).cards
    if file:
        assert found == machine.host_card(cards.load(REPOSITORY, file))
    else:
        assert (found.memory, found.context) == (listed << 20, 0)


def test_an_unknown_card_is_taken_as_nvidia_smi_has_it() -> None:
    text = LAPTOP + "NVIDIA RTX PRO 3000 Blackwell Generation Laptop GPU, 12.0, 580.95.05, 12227\n"
    found = machine.machine_of(REPOSITORY, text)
    assert found.cards[1].capability == Capability(12, 0)
    assert found.cards[1].memory == 12227 << 20


def test_a_gb10_has_the_memory_of_its_machine() -> None:
    text = "NVIDIA GB10, 12.1, 580.173.02, [N/A]\n"
    (found,) = machine.machine_of(REPOSITORY, text).cards
    total, *_ = Path("/proc/meminfo").read_text().splitlines()
    assert found.capability == Capability(12, 1)
    assert found.memory >> 20 == int(total.split()[1]) >> 10


@pytest.mark.parametrize("text", ["No devices were found\n", "A, [N/A], 390.157, 2000\n"])
def test_another_output_is_no_machine(text: str) -> None:
    with pytest.raises(UntriedError):
        machine.machine_of(REPOSITORY, text)


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_the_machine_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "--query-gpu=name,compute_cap,driver_version,memory.total"
    on_path(tmp_path, monkeypatch, f'test "$1" = {wanted} && echo "{LAPTOP.strip()}"')
    assert machine.present(REPOSITORY) == machine.machine_of(REPOSITORY, LAPTOP)


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
        machine.present(REPOSITORY)
    assert "builder choose --card" in caught.value.hint


def test_without_nvidia_smi_it_asks_for_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorldError, match="has no NVIDIA GPU") as caught:
        machine.present(REPOSITORY)
    assert "5090-laptop" in caught.value.hint
