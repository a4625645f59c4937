"""Tables, columns and figures of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest

from builder.cli.terminal import line, out
from builder.errors import as_started, plain

FIRST_ROWS = 15
"""Rows that fit on a terminal together with a summary."""
GAP = 2  # columns between two cells (rich.table.Table: padding=(0, 1))


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    single_lines: bool = False,
    drops: Sequence[str] = (),
) -> None:
    """Print a table, if it has rows; elsewhere than on a terminal, tabs separate the cells.

    A row may have fewer cells than the header.  On a terminal, wide cells wrap; with
    ``single_lines``, they are cut instead.  A table that is too wide loses columns, in the order of
    ``drops``.
    """
    if not rows:
        return
    if not out().is_terminal:
        for row in (header, *rows):
            cells = [" ".join(as_started(plain(cell)).split("\n")) for cell in row]
            out().file.write("\t".join(cells).rstrip() + "\n")  # print would expand the tabs
        return
    from rich.table import Table
    from rich.text import Text

    for name in drops:
        if _width(header, rows) > out().width:
            place = [*header].index(name)
            header, *rows = ([*row[:place], *row[place + 1 :]] for row in (header, *rows))
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        texts = [Text(as_started(plain(cell))) for cell in row]
        if single_lines:
            for text in texts:
                text.no_wrap, text.overflow = True, "ellipsis"
        drawn.add_row(*texts)
    out().print(drawn)


def _width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The columns of a terminal that a table takes."""
    columns = zip_longest(header, *rows, fillvalue="")
    return sum(max(map(len, column)) + GAP for column in columns) - GAP


def first_rows(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: str = "more row"
) -> None:
    """Print a table; on a terminal its first ``FIRST_ROWS`` rows, and the number of ``left``."""
    if not out().is_terminal:
        table(header, rows)
        return
    table(header, rows[:FIRST_ROWS], single_lines=True)
    if len(rows) > FIRST_ROWS:
        line(f"{counted(len(rows) - FIRST_ROWS, left)}: a pipe or a file gets them all")


def pairs(lines: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns; values are never cut, so that they can be copied."""
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        line(f"{name:{width}}  {value}")


def filled(lines: Mapping[str, str]) -> list[tuple[str, str]]:
    """The names that have a value, with their values."""
    return [(name, value) for name, value in lines.items() if value]


def paragraph(title: str, lines: Sequence[str]) -> None:
    """Print an indented list below its title; nothing if the list is empty."""
    if lines:
        line("\n".join([f"\n{title}", *(f"  {each}" for each in lines)]))


def counted(count: int, noun: str) -> str:
    """``1 recipe`` or ``2 recipes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def minute(time: str) -> str:
    """A time (RFC 3339) for people, in UTC; a text that is no time stays as it is."""
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        return time
    return f"{found.astimezone(UTC) if found.tzinfo else found:%Y-%m-%d %H:%M} UTC"
