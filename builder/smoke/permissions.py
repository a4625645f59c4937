"""Check: no file of the image grants additional rights."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from builder.smoke.contents import Contents
from builder.smoke.rules import Rules
from builder.smoke.verdict import Check


def check(contents: Contents, rules: Rules) -> Iterator[Check]:
    """No set-uid program, and no world-writable file or directory."""
    elevated = []
    writable = []
    for file in contents.files.values():
        if file.kind == "file" and file.mode & (stat.S_ISUID | stat.S_ISGID):
            elevated.append((file.path, f"{file.path} ({stat.S_IMODE(file.mode):04o})"))
        sticky = file.kind == "directory" and file.mode & stat.S_ISVTX
        if file.kind in {"file", "directory"} and file.mode & stat.S_IWOTH and not sticky:
            writable.append((file.path, f"{file.path} ({stat.S_IMODE(file.mode):04o})"))
    yield rules.check("set-uid", "no set-uid or set-gid program", "none", elevated)
    yield rules.check(
        "world-writable",
        "no world-writable file or directory",
        "only with the sticky bit",
        writable,
    )
