"""Verdicts: a check that passed, one that failed, one that could not be run."""

from __future__ import annotations

from builder.smoke.verdict import Check, Verdict

GOOD = Check("runs", "server --version", "exit status 0", "0", True, 0.25)
BAD = Check("option", "--spec-type", "has <mtp> | x", "none\x00 [a](b) `c`", False, 0.5)
UNTRIED = Check("serves", "starts", "healthy", "no container", None, 1.0)


def verdict(*checks: Check) -> Verdict:
    return Verdict("sha256:" + "0" * 64, checks, 10_000_000, 20_000_000)
