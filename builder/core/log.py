"""Progress lines and times: modules do not print, they call a ``Log``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Log = Callable[[str], None]
"""Takes one line for the user."""


def duration(seconds: float) -> str:
    """A number of seconds for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


class Timings(dict[str, float]):
    """The seconds of each stage of a build, by its name."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage, also one that fails."""
        started = time.monotonic()
        try:
            yield
        finally:
            self[name] = round(time.monotonic() - started, 2)


CHECK_STAGE = "smoke"
"""The name, in ``Timings``, of the stage that checks an image."""


def build_stage(name: str) -> str:
    """The name, in ``Timings``, of the stage that builds the plan of this name."""
    return f"build {name}"
