"""The error of an image whose verdict is not good."""

from __future__ import annotations

from builder.images.check import smoke_error
from builder.smoke.verdict import Check, Verdict

GOOD = Check("runs", "server --version", "exit status 0", "0", True, 0.25)


BAD = Check("option", "--spec-type", "has <mtp> | x", "none\x00 [a](b) `c`", False, 0.5)


UNTRIED = Check("serves", "starts", "healthy", "no container", None, 1.0)


def verdict(*checks: Check) -> Verdict:
    return Verdict("sha256:" + "0" * 64, checks, 10_000_000, 20_000_000)


def test_a_failure_and_what_could_not_be_tried_exit_differently() -> None:
    failed = smoke_error("a-1", "a:1", verdict(GOOD, BAD, UNTRIED))
    assert (failed.exit_code, failed.what) == (7, "a-1 is built, and 1 of 3 checks failed")
    untried = smoke_error("a-1", "a:1", verdict(GOOD, UNTRIED))
    assert untried.exit_code == 8
    assert "no container" in untried.why
