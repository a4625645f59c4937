"""The type of progress lines: modules do not print, they call a ``Log``."""

from __future__ import annotations

from collections.abc import Callable

Log = Callable[[str], None]
"""Takes one line for the user."""
