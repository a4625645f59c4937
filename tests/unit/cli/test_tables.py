"""Tables and durations."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from builder.cli import tables
from builder.cli.tables import minute, table
from builder.tools.log import duration


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


def test_a_table_that_is_too_wide_loses_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("name-of-a-preset", "1", "long " * 4), ("other",)]

    def drawn(width: int) -> list[str]:
        text = io.StringIO()
        console = Console(file=text, force_terminal=True, width=width, color_system=None)
        monkeypatch.setattr(tables, "out", lambda: console)
        table(("name", "speed", "why"), rows, drops=("why", "speed"))
        return [line.rstrip() for line in text.getvalue().splitlines()]

    assert drawn(60)[0].split() == ["name", "speed", "why"]
    assert drawn(44)[0].split() == ["name", "speed"]
    assert drawn(20) == ["name", "name-of-a-preset", "other"]
