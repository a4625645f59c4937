"""Which code a card takes."""

from __future__ import annotations

import re

import pytest

from simulator.fatbin import FatbinEntry, taken
from simulator.selection import Capability, Code


def code(name: str) -> Code:
    found = re.fullmatch(r"(sm|compute)_(\d+)([af]?)", name)
    assert found
    return Code("elf" if found[1] == "sm" else "ptx", int(found[2]), found[3])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("card", "offered", "chosen"),
    [
        ("12.0", "sm_120", "sm_120"),
        ("12.0", "compute_120 sm_90 sm_120", "sm_120"),
        ("12.0", "sm_120 sm_120f sm_120a compute_120", "sm_120a"),
        # Machine code runs on its major version, from its own minor version on.
        ("12.1", "sm_120", "sm_120"),
        ("12.0", "sm_121", None),
        ("8.9", "sm_80 sm_86", "sm_86"),
        ("8.9", "sm_86 sm_90", "sm_86"),
        ("8.0", "sm_86", None),
        ("12.0", "sm_100 sm_90", None),
        # a: exactly one; f: the family, from its own version on.
        ("12.1", "sm_120a", None),
        ("12.0", "sm_90a compute_90a", None),
        ("12.1", "compute_120a", None),
        ("12.0", "compute_120a", "compute_120a"),
        ("12.1", "sm_120f", "sm_120f"),
        ("12.0", "sm_121f compute_121f", None),
        ("10.3", "sm_100f", "sm_100f"),
        ("12.0", "compute_100f", None),
        ("12.1", "compute_120f", "compute_120f"),
        # PTX: any version up to the card's, after all machine code.
        ("12.0", "compute_75 compute_90", "compute_90"),
        ("12.0", "compute_121", None),
        ("9.0", "compute_90 sm_86", "compute_90"),
        ("12.0", "compute_120 sm_120", "sm_120"),
        ("12.0", "", None),
    ],
)
def test_the_code_that_a_card_takes(card: str, offered: str, chosen: str | None) -> None:
    entries = [FatbinEntry(code(name), 0, 8, 8) for name in offered.split()]
    found = taken(entries, Capability.parse(card))
    assert (found.code.name if found else None) == chosen


@pytest.mark.parametrize("text", ["", "12", "120", "12.", "12.00", "a.b", "12.0a", "-1.0"])
def test_no_capability(text: str) -> None:
    with pytest.raises(ValueError, match="no compute capability, for example"):
        Capability.parse(text)


@pytest.mark.parametrize(
    ("arch", "capability"),
    [("120", "12.0"), ("120a-real", "12.0"), ("90", "9.0"), ("121f", "12.1")],
)
def test_an_architecture_is_a_compute_capability(arch: str, capability: str) -> None:
    assert str(Capability.of_arch(arch)) == capability
