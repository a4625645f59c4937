"""Exceptions that nobody expected: explained where the system is at fault, else reported."""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback

from platformdirs import user_state_path

from builder import __version__
from builder.errors import BuilderError, SpaceError, WorldError


def explained(error: BaseException) -> BuilderError | None:
    """What an exception means where this machine is at fault; None where builder may be."""
    if isinstance(error, BuilderError):
        return error
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.ENOSPC:
        return SpaceError("the disk is full", str(error), "free some, then build again")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return WorldError(
            "something may not be read or written",
            str(error),
            "BUILDER_CACHE_DIR and BUILDER_STATE_DIR say where builder writes",
        )
    return None


def report(error: BaseException) -> str:
    """Write a report of a fault of builder's own; where it is, or its text where none can be."""
    text = "".join(traceback.format_exception(error))
    try:
        folder = user_state_path("builder") / "crashes"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
        file.write_text(f"builder {__version__}, Python {sys.version}\n{text}")
    except OSError:
        return text
    return str(file)
