"""One build at work: the settings, who hears of its progress, and the seconds of its stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from builder.images.log import Step
from builder.settings import Settings


class Progress(Protocol):
    """Receives the progress of a build."""

    def log(self, line: str, /) -> None:
        """A line for the user."""

    def on_progress(self, progress: Step | str, /) -> None:
        """A step of a compile, or any other line of BuildKit's progress."""


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


@dataclass(frozen=True, slots=True)
class ActiveBuild:
    """One build at work."""

    settings: Settings
    progress: Progress
    offline: bool = False
    """Fetch nothing: an input that is neither mirrored nor cached is an error."""
    seconds: Timings = field(default_factory=Timings)
