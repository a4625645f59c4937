"""Where output goes: results to standard output, messages to standard error."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from builder.core.errors import as_started, plain

if TYPE_CHECKING:
    from rich.console import Console


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
