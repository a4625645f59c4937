"""Text in Markdown: a recipe's words are shown as they are written, and never become markup."""

from __future__ import annotations

import re
from collections.abc import Sequence

from builder.errors import plain

SPECIAL = re.compile(r"[\\`*<\[\]~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|&(?=#?\w+;)")
"""What begins markup within a line (CommonMark 0.31, section 6; GFM's strikethrough)."""
BLOCK = re.compile(r"^(?:(?=[-+]\s|#{1,6}(?:\s|$)|>|[-+=]+\s*$)|(\d{1,9})(?=[.)](?:\s|$)))")
"""What begins a block at the start of a line (CommonMark 0.31, sections 4 and 5)."""


class Markdown(str):
    """A text that is Markdown already: ``escaped`` leaves it as it is."""

    __slots__ = ()


def escaped(text: object) -> Markdown:
    """A value in one line that Markdown shows as it is written."""
    if isinstance(text, Markdown):
        return text
    line = SPECIAL.sub(lambda found: "\\" + found[0], " ".join(plain(str(text)).split()))
    return Markdown(BLOCK.sub(lambda found: (found[1] or "") + "\\", line))


def code(text: str) -> Markdown:
    """A text in one line as code (CommonMark 0.31, section 6.1)."""
    line = " ".join(plain(text).split())
    ticks = _ticks(line, 1)
    space = " " if "`" in line else ""
    return Markdown(f"{ticks}{space}{line}{space}{ticks}")


def console(commands: Sequence[str]) -> Markdown:
    """Shell commands as a fenced block of code (CommonMark 0.31, section 4.5)."""
    text = "\n".join(f"$ {plain(command)}" for command in commands)
    fence = _ticks(text, 3)
    return Markdown(f"{fence}console\n{text}\n{fence}")


def _ticks(text: str, least: int) -> str:
    """More back ticks than any run of them in a text, and at least ``least``."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)
