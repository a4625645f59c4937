"""Exceptions that nobody expected: explained where the system is at fault, else reported."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from platformdirs import user_cache_path, user_state_path

from builder import __version__
from builder.errors import BuilderError, WorldError
from builder.tools.files import full_disk, is_disk_full


def explained(error: BaseException) -> BuilderError | None:
    """What an exception means where this machine is at fault; None where builder may be."""
    if isinstance(error, BuilderError):
        return error
    if not isinstance(error, OSError):
        return None
    if is_disk_full(error):
        named = [Path(error.filename)] if isinstance(error.filename, str) else []
        why = ": ".join([*map(str, named), str(error.strerror)])
        return full_disk(why, *(named or [*_directories(), Path(tempfile.gettempdir())]))
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return WorldError(
            f"cannot read or write {error.filename or 'a file that builder needs'}",
            str(error.strerror or error),
            "check who owns it; BUILDER_CACHE_DIR and BUILDER_STATE_DIR name the directories that "
            "builder writes to",
        )
    return None


def report(error: BaseException) -> str:
    """Write a report of a fault of builder's own; where it is, or its text where none can be."""
    text = "".join(traceback.format_exception(error))
    try:
        _, state = _directories()
        folder = state / "crashes"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
        file.write_text(f"builder {__version__}, Python {sys.version}\n{text}")
    except OSError:
        return text
    return str(file)


def _directories() -> tuple[Path, Path]:
    """The cache's and the state's directory: the user's, else the defaults."""
    try:
        from builder import settings

        chosen = settings.load()
    except Exception:  # what reads the settings may be what has failed
        return user_cache_path("builder"), user_state_path("builder")
    return chosen.cache_dir, chosen.state_dir
