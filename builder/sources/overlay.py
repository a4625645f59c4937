"""The overlay of a patched tree: only the files that changed, and the hash of each old one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.core.errors import PatchError
from builder.sources.repositories import Repositories

NO_OBJECT = "0" * 40
EXECUTABLE = "100755"
FILES = frozenset({"000000", "100644", EXECUTABLE})  # git's modes: none, file, executable


def write(
    repositories: Repositories,
    trees: tuple[str, str],
    root: str,
    starts: Mapping[str, Any],
    target: Path,
) -> None:
    """Write the difference of two trees, before and after, to the new directory ``target``.

    The image has the directory ``root`` of the trees (empty: all) beside its packages.
    ``manifest.json`` lists path, sha256 before and after (null: no file), and ``executable`` if
    that changes; ``files`` holds the new files; ``starts.json`` the base's entrypoint and command.
    Raises ``PatchError`` for a change of a symbolic link or a submodule, or outside ``root``.
    """
    scratch, (old, new) = repositories.scratch, trees
    manifest = []
    for before, after in scratch.changes(old, new) if old != new else ():
        if not {before.mode, after.mode} <= FILES:
            raise PatchError(
                f"{after.path} is not a file before and after the patch",
                "an overlay has only files",
            )
        path = _installed(after.path, root)
        change: dict[str, Any] = {"path": path}
        for side, item in (("before", before), ("after", after)):
            content = scratch.read(item.object) if item.object != NO_OBJECT else None
            change[side] = None if content is None else hashlib.sha256(content).hexdigest()
        manifest.append(change)
        if content is not None:
            if EXECUTABLE in {before.mode, after.mode} and before.mode != after.mode:
                change["executable"] = after.mode == EXECUTABLE
            file = target / "files" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    (target / "files").mkdir(parents=True, exist_ok=True)
    (target / "manifest.json").write_text(json.dumps(manifest, indent=2))
    (target / "starts.json").write_text(json.dumps(starts))


def _installed(path: str, root: str) -> str:
    prefix = f"{root}/" if root else ""
    if not path.startswith(prefix):
        raise PatchError(
            f"{path} is outside of {prefix}",
            f"an overlay has installed files only, which the repository has in {prefix}",
            "correct `to` or `edits` in the recipe",
        )
    return path.removeprefix(prefix)
