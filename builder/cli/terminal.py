"""Where output goes: results to standard output, messages to standard error."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

import typer

from builder.core.errors import PROGRAM, BuilderError, as_started, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_IN_BACK_TICKS = re.compile(r"`[^`\n]+`")


@cache
def out() -> Console:
    """The console of results."""
    return _console(stderr=False)


@cache
def err() -> Console:
    """The console of messages and progress."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def log(message: str) -> None:
    """Print a message for the user."""
    err().print(as_started(plain(message)), markup=False)


def line(text: str) -> None:
    """Print one line of a result."""
    out().print(as_started(plain(text)), markup=False)


def print_json(value: Any) -> None:
    """Print a result for programs."""
    typer.echo(json.dumps(value, indent=2))


# Tables, columns and figures of results.

GAP = 2  # columns between two cells (rich.table.Table: padding=(0, 1))
READABLE = 30  # columns of a text that wraps
NARROWEST = 6  # columns of a figure that wraps


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    single_lines: bool = False,
    drops: Sequence[str] = (),
    wraps: str = "",
    right: Sequence[str] = (),
) -> None:
    """Print a table, if it has rows; elsewhere than on a terminal, tabs separate the cells.

    A row may have fewer cells than the header.  On a terminal, wide cells wrap; with
    ``single_lines``, they are cut instead.  A table that is too wide loses columns, in the order of
    ``drops``; the column ``wraps`` counts with a width at which it still reads well.  The first
    column of such a table does not wrap: it has names.  Columns of ``right`` are right-aligned.
    """
    if not rows:
        return
    if not out().is_terminal:
        _tabbed((header, *rows))
        return
    from rich.table import Table
    from rich.text import Text

    columns = [*zip_longest(header, *rows, fillvalue="")]

    def width(column: Sequence[str]) -> int:
        widest = max(map(len, column))
        return min(widest, READABLE) if wraps and column[0] == wraps else widest

    for name in drops:
        if sum(map(width, columns)) + GAP * (len(columns) - 1) > out().width:
            columns = [column for column in columns if column[0] != name]
    least = width(columns[0]) + (len(columns) - 1) * (GAP + NARROWEST)
    names = bool(drops or wraps) and least <= out().width  # else rich would cut them
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if column[0] in right else "left"
        first = names and number == 0
        drawn.add_column(column[0], overflow="fold", no_wrap=first, justify=justify)
    for row in zip(*(column[1:] for column in columns), strict=True):
        texts = [Text(as_started(plain(cell))) for cell in row]
        if single_lines:
            for text in texts:
                text.no_wrap, text.overflow = True, "ellipsis"
        drawn.add_row(*texts)
    _print_short(drawn)


def _print_short(drawn: Table) -> None:
    with out().capture() as captured:
        out().print(drawn)
    for each in captured.get().splitlines():
        out().file.write(f"{each.rstrip()}\n")  # without the blanks at its end


def _tabbed(rows: Sequence[Sequence[str]]) -> None:
    for row in rows:
        cells = [" ".join(as_started(plain(cell)).split("\n")) for cell in row]
        out().file.write("\t".join(cells).rstrip() + "\n")  # print would expand the tabs


def wrapped(text: str, indent: str = "  ", first: str | None = None) -> str:
    """A text below a title: indented, and broken between words where it is on a terminal; the
    ``first`` line has its own indent."""
    return _wrapped(text, out(), indent if first is None else first, indent)


def _wrapped(text: str, console: Console, first: str = "  ", indent: str = "  ") -> str:
    """``wrapped`` for a console.  A command in back ticks stays whole, so that it can be copied."""
    whole = _IN_BACK_TICKS.sub(lambda found: found[0].replace(" ", "\xa0"), as_started(plain(text)))
    filled = textwrap.fill(
        whole,
        max(console.width, READABLE) if console.is_terminal else sys.maxsize,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\xa0", " ")


def print_error(error: BuilderError) -> None:
    """Print what failed, why, and the next step."""
    lines = [_wrapped(f"{PROGRAM}: {error.what}", err(), "")]
    lines += [_wrapped(why, err()) for why in error.why.splitlines()]
    for number, step in enumerate(error.hint.splitlines()):
        lines.append(_wrapped(step, err(), "     " if number else "  -> ", "     "))
    typer.echo("\n".join(lines), err=True)


def pairs(lines: Mapping[str, str] | Sequence[tuple[str, str]], *, wraps: bool = False) -> None:
    """Print names and values in two columns; values are never cut, so that they can be copied.

    Of a mapping, only names that have a value.  With ``wraps``, values are prose: on a terminal
    they wrap in their column, between words.
    """
    if isinstance(lines, Mapping):
        lines = [(name, value) for name, value in lines.items() if value]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        text = f"{name:{width}}  {value}"
        line(wrapped(text, " " * (width + 2), "") if wraps else text)


def paragraph(title: str, lines: Sequence[str]) -> None:
    """Print an indented list below its title; nothing if the list is empty."""
    if lines:
        line("\n".join([f"\n{title}", *map(wrapped, lines)]))


def can_ask() -> bool:
    """Whether a person is at a terminal, and sees a question."""
    return sys.stdin.isatty() and err().is_terminal


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
