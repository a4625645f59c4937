"""A patched tree becomes an overlay: only the files that changed, and what each was before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.errors import PatchError
from builder.tools.git.repositories import Repositories

NOTHING = "0" * 40
PROGRAM = "100755"
FILES = frozenset({"000000", "100644", PROGRAM})  # git's modes: none, a file, a program


def write(
    repositories: Repositories, old: str, new: str, starts: Mapping[str, Any], target: Path
) -> None:
    """Write what differs between two trees to the new directory ``target``.

    ``manifest.json`` lists path, sha256 before and after (null: not there), and ``executable``
    where that changes; ``files`` holds the new files; ``starts.json`` the base's entrypoint and
    command.  Raises ``PatchError`` for a change that is not of a file.
    """
    scratch = repositories.scratch
    manifest = []
    for before, after in scratch.changes(old, new) if old != new else ():
        if not {before.mode, after.mode} <= FILES:
            raise PatchError(
                f"{after.path} would be a link in an installed package", "only files are laid over"
            )
        contents = {
            name: scratch.read(item.object) if item.object != NOTHING else None
            for name, item in (("before", before), ("after", after))
        }
        digests = {
            name: None if content is None else hashlib.sha256(content).hexdigest()
            for name, content in contents.items()
        }
        change: dict[str, Any] = {"path": after.path, **digests}
        if (before.mode == PROGRAM) != (after.mode == PROGRAM) and contents["after"] is not None:
            change["executable"] = after.mode == PROGRAM
        manifest.append(change)
        content = contents["after"]
        if content is not None:
            file = target / "files" / after.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    (target / "files").mkdir(parents=True, exist_ok=True)
    (target / "manifest.json").write_text(json.dumps(manifest, indent=2))
    (target / "starts.json").write_text(json.dumps(starts))
