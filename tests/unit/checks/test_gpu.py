"""Checks of GPU, driver and speed, on what the tools print."""

from __future__ import annotations

import pytest

from builder.checks import serves
from builder.core.errors import UntriedError
from builder.docker import gpus
from builder.presets.schema import Generation

TABLE = "NVIDIA GeForce RTX 5090, 12.0, 580.95.05, 32607\nNVIDIA H200, 9.0, 580.95.05, 143771\n"


def test_the_devices_of_nvidia_smi_are_checked_against_the_recipe() -> None:
    from support.smoke_tests import hello_recipe

    found = gpus.read(TABLE)
    assert [gpu.memory for gpu in found] == [32607, 143771]
    recipe = hello_recipe()
    right = list(serves._devices(found, recipe, "580"))
    assert [(check.subject, check.passed) for check in right] == [
        ("device", True),
        ("driver", True),
    ]
    wrong = list(serves._devices(found[1:], recipe, "590"))
    assert [check.passed for check in wrong] == [False, False]
    assert wrong[0].expected == "compute capability 12.0"
    assert wrong[0].found == "NVIDIA H200 (9.0)"
    assert [check.passed for check in serves._devices((), recipe, "580")] == [False]
    # A driver that nvidia-smi does not know is neither old nor new.
    unknown = gpus.read(TABLE.splitlines()[0].replace("580.95.05", "[N/A]"))
    assert [check.state for check in serves._devices(unknown, recipe, "580")][1] == "untried"
    for text in ("No devices were found\n", "a, b\n"):
        with pytest.raises(UntriedError, match="unknown format"):
            gpus.read(text)


def runs(*speeds: float, accepted: tuple[int, ...] = ()) -> list[Generation]:
    shares = accepted or (7,) * len(speeds)
    return [
        Generation(100, speed, 10, 1.0, seed, drafted=10, accepted=share)
        for seed, (speed, share) in enumerate(zip(speeds, shares, strict=True))
    ]


def test_the_collapse_test_says_which_it_is() -> None:
    speed, drafts = serves.check_runs(runs(53, 55, 11), "steady")
    assert not speed.passed
    assert speed.found.startswith("collapse: 2 fast, 1 slow: 54 and 11; mean 39.67 t/s")
    assert "(53.0 55.0 11.0)" in speed.found
    assert drafts.passed
    speed, drafts = serves.check_runs(runs(50, 51, 50, 49, accepted=(7, 7, 0, 0)), "steady")
    assert speed.passed
    assert not drafts.passed
    assert drafts.found.startswith("collapse: runs 3 to 4 have 0, 0% of the 0.7 of runs 1 to 2")
