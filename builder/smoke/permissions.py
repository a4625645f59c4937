"""Check: no file of the image grants additional rights."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from builder.smoke.context import Context
from builder.smoke.verdict import Check


def check_elevated(context: Context) -> Iterator[Check]:
    """No set-uid or set-gid program."""
    elevated = [
        (file.path, f"{file.path} ({stat.S_IMODE(file.mode):04o})")
        for file in context.added.files.values()
        if file.kind == "file" and file.mode & (stat.S_ISUID | stat.S_ISGID)
    ]
    yield context.rules.check("set-uid", "no set-uid or set-gid program", "none", elevated)


def check_writable(context: Context) -> Iterator[Check]:
    """No world-writable file, and no such directory without the sticky bit."""
    writable = [
        (file.path, f"{file.path} ({stat.S_IMODE(file.mode):04o})")
        for file in context.added.files.values()
        if file.kind in {"file", "directory"} and file.mode & stat.S_IWOTH
        if file.kind == "file" or not file.mode & stat.S_ISVTX
    ]
    subject, expected = "no world-writable file or directory", "only with the sticky bit"
    yield context.rules.check("world-writable", subject, expected, writable)
