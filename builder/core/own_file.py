"""A file that only this user writes, in a directory where others may write, too."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from builder.core.errors import WorldError
from builder.core.files import is_disk_full


@contextmanager
def own_file(file: Path) -> Iterator[BinaryIO]:
    """Open a file to append to it and to read it; it and its directory are created if absent.

    Raises ``WorldError`` where something else has its name: a link, another kind of file, a file of
    another user; and where everybody may replace it.
    """
    at = file.parent
    try:
        at.mkdir(parents=True, exist_ok=True)
        folder = at.stat()
        if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
            raise WorldError(
                f"cannot write to the directory {at}",
                "every user of this machine may replace the files in it",
                f"`chmod o-w {shlex.quote(str(at))}`",
            )
        at = file
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        opened = os.open(file, flags, 0o666)
    except OSError as error:
        if is_disk_full(error):
            raise
        why = f"it is a link to {at.readlink()}" if at.is_symlink() else error.strerror
        raise WorldError(f"cannot write to {at}", why or str(error), _remove(at)) from error
    found = os.fstat(opened)
    own = {os.geteuid(), folder.st_uid}  # root also appends to files of the directory's owner
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid not in own:
        os.close(opened)
        why = "a device, a second name of a file, or another user's file"
        why = f"it is no file of this user alone: {why}"
        raise WorldError(f"cannot write to {file}", why, _remove(file))
    with os.fdopen(opened, "a+b") as stream:
        yield stream


def _remove(path: Path) -> str:
    return f"find out who created it, then remove it: `rm {shlex.quote(str(path))}`"
