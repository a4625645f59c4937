"""The memory of a server with a model folder: its log's figures beside the simulator's."""

from __future__ import annotations

import pytest

from builder.families.stated import GIB, StatedLog
from builder.simulator import memory
from builder.simulator.report import Allocation, CardUse, Report
from builder.smoke.device_trial import check_loaded, check_stated

LOG = StatedLog(weights=2 * GIB, kv_cache=5 * GIB, kv_tokens=1000)


def allocated(*sizes: int) -> Report:
    """A report of a process with allocations of these sizes at its peak."""
    card = CardUse(name="", memory=16 * GIB, context=GIB, used=0, peak=GIB + sum(sizes))
    allocations = tuple(
        Allocation(
            stack=0, card=0, function="cudaMalloc", count=1, live=0, at_peak=size, largest=size
        )
        for size in sizes
    )
    return Report(version=1, cards=(card,), stacks=(("",),), allocations=allocations)


def test_the_log_names_the_parts_of_the_memory() -> None:
    parts = memory.with_rest(allocated(2 * GIB, 6 * GIB), LOG.kinds)
    assert parts == {"weights": 2 * GIB, "KV cache": 5 * GIB, "other": GIB}
    none = memory.with_rest(allocated(3 * GIB), StatedLog(kv_cache=-GIB).kinds)
    assert none == {"KV cache": 0, "other": 3 * GIB}


@pytest.mark.parametrize(
    ("size", "passed"),
    [(7 * GIB, True), (7 * GIB - GIB // 100, True), (7 * GIB - GIB // 50, False)],
)
def test_the_log_states_no_more_than_was_allocated(size: int, passed: bool) -> None:
    check = check_stated(allocated(size), LOG)
    assert check.passed is passed
    assert ("its log states 7168 MiB" in check.found) is not passed


@pytest.mark.parametrize(
    ("log", "loaded"),
    [
        (LOG, True),
        (StatedLog(kv_tokens=2048), True),  # TabbyAPI states no sizes
        (StatedLog(kv_tokens=0, kv_cache=GIB), False),
        (StatedLog(kv_cache=-GIB), False),
        (StatedLog(weights=GIB), False),
    ],
)
def test_a_model_is_loaded_when_the_log_states_a_cache(log: StatedLog, loaded: bool) -> None:
    assert check_loaded(log).passed is loaded
