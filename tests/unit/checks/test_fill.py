"""How many prompts fill a context."""

from __future__ import annotations

import pytest

from builder.checks.server import MOST, requests_of


@pytest.mark.parametrize(
    ("context", "tokens", "requests"),
    [(8192, 8128, 1), (8192, 4064, 2), (8192, 2032, 4), (512, 448, 1), (128, 200, 1)],
)
def test_prompts_that_a_server_cuts_are_sent_several_times(
    context: int, tokens: int, requests: int
) -> None:
    assert requests_of(context, tokens) == requests


def test_there_is_a_limit() -> None:
    assert requests_of(1 << 20, 1) == MOST
