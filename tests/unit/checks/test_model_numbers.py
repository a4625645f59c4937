"""What the checks of the server's numbers say of a report."""

from __future__ import annotations

import pytest

from builder.checks.logit_test import check_kernels
from builder.checks.verdict import CheckState
from simulator.report import CardUse, KernelUse, Report, Violation

CARD = CardUse(name="", memory=1, context=0, used=0, peak=0)
OUT_OF_BOUNDS = "out of bounds: writes 4 bytes at 0x7f23f5a02200"
LACKING = "not computed: mbarrier.init"


def report(computed: int, *whys: str) -> Report:
    launch = KernelUse(
        kernel="_Z5scalePf",
        file="/opt/engine/lib/libggml-cuda.so",
        code="sm_120a",
        card=0,
        count=3,
        grid=(1, 1, 1),
        block=(32, 1, 1),
        shared=0,
        computed=computed,
        instructions=1_000 * computed,
    )
    violations = tuple(
        Violation(kernel="_Z5scalePf", error="cudaErrorNotSupported", why=why, stack=0, count=1)
        for why in whys
    )
    return Report(version=1, cards=(CARD,), stacks=((),), launches=(launch,), violations=violations)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (report(3), CheckState.PASSED),
        (report(2), CheckState.FAILED),
        (report(3, OUT_OF_BOUNDS), CheckState.FAILED),
        (report(3, LACKING), CheckState.SKIPPED),
        (report(3, LACKING, OUT_OF_BOUNDS), CheckState.FAILED),
        (Report(version=1), CheckState.FAILED),
        (None, CheckState.FAILED),
    ],
)
def test_every_launch_is_computed_without_a_fault(found: Report | None, state: CheckState) -> None:
    assert check_kernels("model: kernels", found).state is state


def test_kernels_are_counted_and_faults_named() -> None:
    check = check_kernels("model: kernels", report(3, OUT_OF_BOUNDS))
    assert check.found == (
        "3 of 3 launches of 1 kernels, 3,000 instructions; "
        f"scale: {OUT_OF_BOUNDS} (cudaErrorNotSupported)"
    )
