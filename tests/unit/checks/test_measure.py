"""How a stream of tokens is timed, and how a context is filled."""

from __future__ import annotations

from typing import Any

import pytest

from builder.checks.server import Answer, Event, StreamedAnswer, UnansweredError
from builder.checks.speed import filling, timed


def event(data: dict[str, Any], at: float) -> Event:
    return Event(Answer.model_validate(data), at)


def test_the_client_times_from_the_first_piece_to_the_last() -> None:
    pieces = [event({"choices": [{"delta": {"content": "a"}}]}, 2.0 + n / 2) for n in range(5)]
    shown = timed(StreamedAnswer((event({"choices": []}, 0.1), *pieces), 9.0, True), seed=3)
    assert (shown.tokens, shown.tokens_per_second, shown.timed_by) == (5, 2.0, "client")
    thought = event({"choices": [{"delta": {"reasoning_content": "b"}}]}, 1.0)
    usage = event({"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens": 2}}, 5.0)
    shown = timed(StreamedAnswer((thought, *pieces, usage), 9.0, True), seed=3)
    assert (shown.tokens, shown.tokens_per_second, shown.prompt_tokens) == (7, 2.0, 2)
    alone = timed(StreamedAnswer((pieces[0],), 4.0, True), seed=3)
    assert alone.tokens_per_second == 0.25
    with pytest.raises(UnansweredError, match="no tokens"):
        timed(StreamedAnswer((), 1.0, True), seed=3)


@pytest.mark.parametrize("tokens", [0, 10, 5000])
def test_a_context_is_filled_with_text_that_differs(tokens: int) -> None:
    text = filling(tokens)
    assert abs(len(text) - tokens * 4) <= 2
    lines = [line for line in text.splitlines() if line]
    assert len(set(lines)) == len(lines)
