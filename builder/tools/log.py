"""Progress lines: modules do not print, they call a ``Log``."""

from __future__ import annotations

from collections.abc import Callable

Log = Callable[[str], None]
"""Takes one line for the user."""


def duration(seconds: float) -> str:
    """A number of seconds for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"
