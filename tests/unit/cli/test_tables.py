"""Tables and durations."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from builder.cli import terminal
from builder.cli import terminal as tables
from builder.cli.terminal import minute, paragraph, table
from builder.core.log import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 0 s"), (1525, "25 min 25 s")],
)
def test_durations_are_read_by_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("time", "text"),
    [
        ("2026-11-21T03:10:59.123456+00:00", "2026-11-21 03:10 UTC"),
        ("2026-11-21T03:10:59Z", "2026-11-21 03:10 UTC"),
        ("2026-11-21T01:10:00+02:00", "2026-11-20 23:10 UTC"),
        ("", ""),
        ("yesterday", "yesterday"),
    ],
)
def test_times_have_their_time_zone(time: str, text: str) -> None:
    assert minute(time) == text


def test_a_table_outside_a_terminal_is_lines_of_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    table(("a", "b"), [("[red]x[/red]", "y" * 300), ("z", "")])
    assert capsys.readouterr().out == f"a\tb\n[red]x[/red]\t{'y' * 300}\nz\n"


NAME = "nemotron-elastic-30b-a3b-nvfp4@5090-laptop"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The lines that a function prints on a terminal of so many columns."""

    def run(width: int, call: Callable[[], None]) -> list[str]:
        text = io.StringIO()
        console = Console(
            file=text, force_terminal=True, width=width, color_system=None, soft_wrap=True
        )
        monkeypatch.setattr(tables, "out", lambda: console)
        monkeypatch.setattr(terminal, "out", lambda: console)
        call()
        return [line.rstrip() for line in text.getvalue().splitlines()]

    return run


def test_a_table_that_is_too_wide_loses_columns(drawn: Callable[..., list[str]]) -> None:
    rows = [("name-of-a-preset", "1", "long " * 4), ("other",)]

    def call() -> None:
        table(("name", "speed", "why"), rows, drops=("why", "speed"))

    assert drawn(60, call)[0].split() == ["name", "speed", "why"]
    assert drawn(44, call)[0].split() == ["name", "speed"]
    assert drawn(20, call) == ["name", "name-of-a-preset", "other"]


def test_columns_without_a_title_stay(drawn: Callable[..., list[str]]) -> None:
    lines = drawn(60, lambda: table(("", "commit", "", ""), [("good", "1a2b", "today", "fix")]))
    assert lines[1].split() == ["good", "1a2b", "today", "fix"]


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_a_name_is_never_folded(width: int, drawn: Callable[..., list[str]]) -> None:
    rows = [
        (NAME, "182.14", "published on 5090-laptop", "a summary of many words " * 4),
        (),
        ("b",),
    ]
    header = ("preset", "tokens/s", "known", "summary")

    def call() -> None:
        table(header, rows, drops=("known", "summary"), wraps="summary")

    assert any(line.startswith(NAME) for line in drawn(width, call)), drawn(width, call)
    # Nothing of it is cut on a terminal without room for it.
    assert NAME in "".join(line.split(" ")[0] for line in drawn(30, call))


def test_a_paragraph_wraps_by_words_on_a_terminal(drawn: Callable[..., list[str]]) -> None:
    text = "Thinking must stay off: with it on, about 40 % of the drafts were accepted."
    assert drawn(40, lambda: paragraph("Known", [text])) == [
        "",
        "Known",
        "  Thinking must stay off: with it on,",
        "  about 40 % of the drafts were",
        "  accepted.",
    ]


def test_a_paragraph_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    paragraph("Known", ["word " * 60])
    assert len(capsys.readouterr().out.splitlines()) == 3
