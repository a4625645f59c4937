"""A verdict is good where no check failed and none could not be run."""

from __future__ import annotations

import pytest

from builder.checks.verdict import Check
from support.verdicts import BAD, GOOD, SKIPPED, UNTRIED, verdict


@pytest.mark.parametrize(
    ("checks", "good"),
    [
        ([], False),
        ([GOOD], True),
        ([GOOD, SKIPPED], True),
        ([GOOD, UNTRIED], False),
        ([GOOD, BAD], False),
    ],
)
def test_a_check_that_failed_or_was_not_tried_spoils_a_verdict(
    checks: list[Check], good: bool
) -> None:
    assert verdict(*checks).good is good


def test_only_checks_that_passed_are_counted_as_passed() -> None:
    found = verdict(GOOD, GOOD, SKIPPED, UNTRIED, BAD)
    assert found.passed_by_kind == {"runs": 2}
    assert (found.failures, found.untried, found.skipped) == ((BAD,), (UNTRIED,), (SKIPPED,))
