"""The outcome of a case in which test-backend-ops ends."""

from __future__ import annotations

import pytest

from builder.checks.kernel_test import Case, Outcome, _Run, _stopped, races
from builder.docker.engine import Finished
from simulator.report import Report, Violation

ABORT = "/src/ggml/src/ggml-cuda/getrows.cu:208: unsupported src0 type: tq3_1s"
FRAMES = "/opt/lib/libggml-base.so.0(ggml_abort+0x11e) [0x1]\n/lib/libc.so.6(+0x29ca8) [0x2]\n"


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (f"{ABORT}\n\n{FRAMES}", f"the program ended with 139: {ABORT}"),
        ("a\nb\nc\nd\n", "the program ended with 139: b c d"),
    ],
)
def test_the_reason_of_an_abort_is_named_not_its_backtrace(output: str, why: str) -> None:
    case = Case("GET_ROWS", "type=tq3_1s,n=256")
    found = _stopped(case, _Run(Finished(139, output), {}, None))
    assert (found.outcome, found.why) == (Outcome.DIFFERS, why)


RACE = (
    "race: reads shared memory at offset 4, which lane 7 of the warp wrote with only shfl between, "
    "which orders no memory in _Z6helperILi2EEvPi, PTX line 523: ld.shared.u32 %r2, [%r3]"
)
GAP = "not computed: mbarrier.init.shared.b64"


def reported(*whys: str) -> Report:
    found = []
    for why in whys:
        kernel = "_Z6helperILi2EEvPi" if "_Z6helperILi2EEvPi" in why else "_Z5otherv"
        found.append(Violation(kernel=kernel, error="", why=why, stack=0, count=1))
    return Report.model_construct(violations=tuple(found))


def test_a_race_is_named_once_by_kernel_and_line() -> None:
    at_source = RACE + " from /src/ggml/mmid.cu:98 block 0,0,0, thread 1,0,0 (warp 0, lane 1)"
    assert list(races(reported(at_source, at_source, GAP)).values()) == [
        ("race: helper mmid.cu:98", f"helper mmid.cu:98: {at_source}")
    ]


def test_without_the_source_a_race_is_accepted_by_its_kernel_and_each_line_is_named() -> None:
    other = RACE.replace("line 523", "line 530")
    assert list(races(reported(RACE, other, RACE)).values()) == [
        ("race: helper", f"helper PTX line 523: {RACE}"),
        ("race: helper", f"helper PTX line 530: {other}"),
    ]


def test_a_race_is_not_why_a_program_ended() -> None:
    case = Case("MUL_MAT_ID", "n=256")
    ended = Finished(139, ABORT)
    assert ABORT in _stopped(case, _Run(ended, {}, reported(RACE))).why
    found = _stopped(case, _Run(ended, {}, reported(RACE, GAP)))
    assert (found.outcome, found.why) == (Outcome.NOT_COMPUTED, f"other: {GAP}")
