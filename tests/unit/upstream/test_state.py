"""The state of a bisect: written, read again, and damaged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.sources.history import Commit
from builder.upstream import bisect as bisect_state
from builder.upstream.bisect import (
    BisectQuestion,
    BisectState,
    BisectStep,
    End,
    QuestionError,
    Trace,
)

QUESTION = BisectQuestion(
    "eng-1", End("v1", "a" * 40), End("main", "b" * 40), "./x", "/d", "bad", True, "s"
)
STEP = BisectStep(Commit("c" * 40, "2026-01-02", "T", "x"), "skip", "why", True, 1.5, "/log")
TRACE = Trace("d" * 40, ("eng:bisect-1",), ("eng:other",))


def test_a_state_comes_back_as_it_went(tmp_path: Path) -> None:
    assert bisect_state.read_state(tmp_path, "eng-1") is None
    state = BisectState(QUESTION, (STEP,), TRACE)
    bisect_state.write_state(tmp_path, state)
    assert bisect_state.read_state(tmp_path, "eng-1") == state
    assert [file.name for file in (tmp_path / "bisect").iterdir()] == ["eng-1.json"]
    bisect_state.write_state(tmp_path, BisectState(QUESTION))  # there is no progress to keep
    assert bisect_state.read_state(tmp_path, "eng-1") is None


@pytest.mark.parametrize(
    ("before", "damage", "reason"),
    [
        (".*", "", "not JSON: see line"),
        (".*", "{", "not JSON: see line"),
        (".*", "[]", "must be a table"),
        (".*", '{"question": {}}', "question.recipe: is missing"),
        ('"date"', '"day"', "steps.0.commit.date: is missing"),
        ("1.5", '"1.5"', "steps.0.seconds: must be a number"),
        ('"skip"', '"ugly"', "steps.0.verdict: must be 'good', 'bad' or 'skip'"),
        ('"trace"', '"more": 1, "trace"', "more: is no known key"),
    ],
)
def test_a_damaged_state_is_refused(tmp_path: Path, before: str, damage: str, reason: str) -> None:
    bisect_state.write_state(tmp_path, BisectState(QUESTION, (STEP,), TRACE))
    file = bisect_state.path_of(tmp_path, "eng-1")
    file.write_text(re.sub(before, damage, file.read_text(), count=1, flags=re.DOTALL))
    with pytest.raises(QuestionError, match="state of the bisect of eng-1 cannot be read") as error:
        bisect_state.read_state(tmp_path, "eng-1")
    assert error.value.why.startswith(f"{file}: {reason}")
    assert error.value.hint == "`builder bisect eng-1 --reset` discards it"
