"""What the checks on a simulated card say of a report."""

from __future__ import annotations

import pytest

from builder.checks.device import check_kernels, check_loaded, check_stated
from builder.engines.logs import GIB, StatedLog
from simulator import report as memory
from simulator.report import Allocation, CardUse, KernelUse, Report, UnknownCode

CARD = CardUse(name="", memory=1, context=0, used=0, peak=0)


def launch(code: str) -> KernelUse:
    return KernelUse(
        kernel="_Z5scalePf",
        file="/opt/engine/lib/libggml-cuda.so",
        code=code,
        card=0,
        count=3,
        grid=(1, 1, 1),
        block=(32, 1, 1),
        shared=0,
    )


@pytest.mark.parametrize(
    ("code", "passed", "found"),
    [
        ("sm_120a", True, "3 launches of 1 kernels from sm_120a"),
        (
            "compute_90",
            False,
            "3 launches of 1 kernels from compute_90; the driver would compile scale at first use",
        ),
    ],
)
def test_kernels_are_launched_as_machine_code(code: str, passed: bool, found: str) -> None:
    check = check_kernels(Report(version=1, cards=(CARD,), launches=(launch(code),)))
    assert (check.passed, check.found) == (passed, found)


def test_code_that_the_driver_compiles_is_named_where_it_is_no_fault() -> None:
    report = Report(version=1, cards=(CARD,), launches=(launch("compute_80"),))
    check = check_kernels(report, compiled_too=True)
    assert check.passed
    assert check.found.endswith("from compute_80; the driver would compile scale at first use")


def test_no_launch_fails() -> None:
    assert check_kernels(Report(version=1)).state == "failed"
    assert check_kernels(Report(version=1), compiled_too=True).state == "failed"


def test_kernels_of_code_that_was_not_read_are_named_with_its_file() -> None:
    unread = (
        UnknownCode(file="made at run time", kernels=("_Z3addPf",)),
        UnknownCode(file="/usr/lib/libother.so", kernels=("_Z3mulPf",)),
    )
    check = check_kernels(
        Report(version=1, cards=(CARD,), launches=(launch("unknown"),), unknown_code=unread)
    )
    assert check.found.endswith(
        "; registers not known (made at run time): add"
        "; registers not known (/usr/lib/libother.so): mul"
    )


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
