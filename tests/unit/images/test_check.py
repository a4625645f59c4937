"""The error of an image whose verdict is not good."""

from __future__ import annotations

from builder.images.check import smoke_error
from support.verdicts import BAD, GOOD, UNTRIED, verdict


def test_a_failure_and_what_could_not_be_tried_exit_differently() -> None:
    failed = smoke_error("a-1", "a:1", verdict(GOOD, BAD, UNTRIED))
    assert (failed.exit_code, failed.what) == (7, "a-1 is built, and 1 of 3 checks failed")
    untried = smoke_error("a-1", "a:1", verdict(GOOD, UNTRIED))
    assert untried.exit_code == 8
    assert "no container" in untried.why
