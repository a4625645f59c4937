"""The outcome of a case in which test-backend-ops ends."""

from __future__ import annotations

import pytest

from builder.checks.kernel_test import Case, Outcome, _Run, _stopped
from builder.docker.engine import Finished

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
