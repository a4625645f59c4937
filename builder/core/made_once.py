"""Directories that are made once for a key, and removed when no run uses them any more."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from builder.core.files import named_lock, workspace
from builder.core.log import Log

UNUSED = 7 * 86400  # seconds without use after which a directory is removed


def made_once(
    cache: Path, name: str, key: str, log: Log, make: Callable[[Path, Path], None]
) -> Path:
    """The directory ``cache / name / key``.

    Where there is none, ``make`` is called with the path to write it at, which does not exist, and
    an empty directory for its own files.  Raises like ``make``, and ``SpaceError``.
    """
    folder = cache / name / key
    if _is_there(folder):
        return folder
    with named_lock(cache, f"{name}-{key}", wait=log), workspace(cache) as work:
        if _is_there(folder):  # another run has made it
            return folder
        remove_unused(folder.parent)
        made, own = work / "made", work / "own"
        own.mkdir()
        make(made, own)
        folder.parent.mkdir(parents=True, exist_ok=True)
        made.rename(folder)
    return folder


def remove_unused(folder: Path) -> None:
    """Remove directories that no run has started to use for a week: they belong to other sources or
    bases, and no run takes a week."""
    oldest = time.time() - UNUSED
    for found in folder.glob("*"):
        with suppress(FileNotFoundError):
            if found.stat().st_mtime < oldest:
                shutil.rmtree(found, ignore_errors=True)


def _is_there(folder: Path) -> bool:
    """Whether there is such a directory; it counts as used now."""
    with suppress(FileNotFoundError):
        os.utime(folder)
        return True
    return False
