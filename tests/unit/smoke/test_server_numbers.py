"""What the checks of the server's numbers say of a report, and of two texts that differ."""

from __future__ import annotations

import pytest

from builder.servers.predictions import Difference
from builder.simulator.report import CardUse, KernelUse, Report, Violation
from builder.smoke.server_numbers import (
    TRIALS,
    check_kernels,
    described,
    drafts,
    limit_beside_f16,
)
from builder.smoke.verdict import CheckState

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


def test_a_difference_is_shown_with_its_first_token_and_the_greatest() -> None:
    found = Difference(4, {0: 0.01, 1: 0.2, 2: 0.3, 3: 0.1, 4: 0.02}, 1.5)
    assert described(found, 0.1) == (
        "4 of 16 tokens are equal, the next one by a margin of 1.5; at most 0.3 apart, at token 3; "
        "first beyond the limit at token 2"
    )
    assert described(Difference(16, {0: 0.05}), 0.1) == (
        "16 of 16 tokens are equal; at most 0.05 apart, at token 1"
    )
    assert described(Difference(16, {}), 0.1) == (
        "16 of 16 tokens are equal; no probabilities to compare"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("--spec-type none,draft-simple,draft-mtp,draft-dflash   kinds", {"draft-mtp"}),
        ("--spec-type {none,mtp}", {"mtp"}),
        ("--spec-type {none,mtp}\n--mtp-head FNAME   an assistant", set()),
        ("--draft-max N    tokens to draft", set()),
    ],
)
def test_the_ways_to_draft_are_those_that_the_engine_lists(text: str, found: set[str]) -> None:
    assert drafts(text) & {"draft-mtp", "mtp"} == found


def test_each_model_is_tried_once() -> None:
    names = [trial.model.name for trial in TRIALS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("turbo2", 3.0),
        ("turbo3", 1.8),
        ("turbo3_tcq", 1.8),
        ("tbq4_0", 1.0),
        ("new", 3.0),
    ],
)
def test_a_type_that_a_cpu_lacks_may_differ_by_its_bits(kind: str, limit: float) -> None:
    assert limit_beside_f16(kind) == limit
