"""The tools that patches are made and tried with, and the errors of patches that half fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import PatchError
from builder.core.log import Log
from builder.sources.repositories import Repositories
from builder.sources.scratch import Scratch


class AbsentError(PatchError):
    """The files that a patch changes are missing."""


class HalfDoneError(PatchError):
    """A script changed files, and failed or did not print all that it must."""


@dataclass(frozen=True, slots=True)
class PatchContext:
    """The tools that patches are made and tried with.

    ``image`` is the engine's image, in which scripts run; None if there is none.
    """

    repositories: Repositories
    work: Path
    image: str | None
    log: Log

    @property
    def scratch(self) -> Scratch:
        """The repository in which trees are made."""
        return self.repositories.scratch
