"""Where the symbolic links of a tree lead, found in the tree itself: nothing is read from disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MOST_LINKS = 40
"""Links that one path may pass: as many as Linux follows (path_resolution(7))."""


def below(folder: Path) -> dict[str, str]:
    """The symbolic links below a directory: target by path."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent) / name for name in (*folders, *files)):
            if path.is_symlink():
                found[path.relative_to(folder).as_posix()] = str(path.readlink())
    return found


def leaving(links: Mapping[str, str]) -> dict[str, str]:
    """The links of a tree that lead out of it, on their own or by way of other links.

    ``links`` are all links of the tree: target by path.
    """
    return {path: target for path, target in links.items() if _leaves(path, links)}


def _leaves(path: str, links: Mapping[str, str]) -> bool:
    """Whether following the link at ``path`` leaves the tree, or never ends."""
    where: list[str] = []
    steps = path.split("/")[::-1]  # the next one is the last
    passed = 0
    while steps:
        step = steps.pop()
        if step == "..":
            if not where:
                return True
            where.pop()
        elif step not in {"", "."}:
            where.append(step)
        target = links.get("/".join(where)) if step not in {"", ".", ".."} else None
        if target is not None:
            passed += 1
            if target.startswith("/") or passed > MOST_LINKS:
                return True
            where.pop()
            steps += target.split("/")[::-1]
    return False
