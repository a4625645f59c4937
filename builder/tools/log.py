"""How modules report progress without printing: the caller gives them a ``Log``."""

from __future__ import annotations

from collections.abc import Callable

Log = Callable[[str], None]
"""Takes one line for the user."""
