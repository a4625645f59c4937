"""A file that only this user writes, in a directory where others may write, too."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from builder.errors import WorldError
from builder.tools.files import is_disk_full


@contextmanager
def own_file(file: Path) -> Iterator[BinaryIO]:
    """Open a file to append to it and to read it; it and its directory are created if absent.

    Raises ``WorldError`` where something else has its name: a link, another kind of file, a file of
    another user; and where everybody may replace it.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unusable(file.parent, error) from error
    try:
        about = os.fstat(folder)
        if about.st_mode & stat.S_IWOTH and not about.st_mode & stat.S_ISVTX:
            raise WorldError(
                f"cannot write to the directory {file.parent}",
                "every user of this machine may replace the files in it",
                f"`chmod o-w {shlex.quote(str(file.parent))}`",
            )
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        opened = os.open(file.name, flags, 0o666, dir_fd=folder)
    except OSError as error:
        raise _unusable(file, error) from error
    finally:
        os.close(folder)
    found = os.fstat(opened)
    own = {os.geteuid(), about.st_uid}  # root also appends to files of the directory's owner
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid not in own:
        os.close(opened)
        raise WorldError(
            f"cannot write to {file}",
            "it is no file of this user alone: a device, a second name of a file, or another "
            "user's file",
            _remove(file),
        )
    with os.fdopen(opened, "a+b") as stream:
        yield stream


def _unusable(path: Path, error: OSError) -> OSError | WorldError:
    if is_disk_full(error):
        return error
    why = error.strerror or str(error)
    if path.is_symlink():
        why = f"it is a link to {path.readlink()}"
    return WorldError(f"cannot write to {path}", why, _remove(path))


def _remove(path: Path) -> str:
    return f"find out who created it, then remove it: `rm {shlex.quote(str(path))}`"
