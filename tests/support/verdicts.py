"""Verdicts: a check that passed, one that failed, one that could not be run, one skipped."""

from __future__ import annotations

from dataclasses import replace

from builder.checks.verdict import Check, Verdict

GOOD = replace(Check.of("runs", "server --version", "exit status 0", "0", True), seconds=0.25)
FOUND = "none\x00 [a](b) `c`"
BAD = replace(Check.of("option", "--spec-type", "has <mtp> | x", FOUND, False), seconds=0.5)
UNTRIED = replace(Check.untried("serves", "starts", "healthy", "no container"), seconds=1.0)
SKIPPED = Check.skipped("device", "a server", "starts", "it is for arm64")


def verdict(*checks: Check) -> Verdict:
    return Verdict("sha256:" + "0" * 64, checks, 10_000_000, 20_000_000)
