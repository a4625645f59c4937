"""Turn copies of one shared library back into the links that they were; runs inside a stage.

A wheel cannot hold symbolic links, so ``libX.so``, ``libX.so.0`` and ``libX.so.0.9`` arrive as
three files of the same bytes.  The longest name of each set stays a file; the others link to it.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from pathlib import Path


def relink(folder: Path) -> int:
    """Link equal libraries of one directory to one of them; return the bytes saved."""
    same: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for file in sorted(folder.glob("lib*.so*")):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            same[file.name.split(".so")[0], digest].append(file)
    saved = 0
    for copies in same.values():
        keep = max(copies, key=lambda file: len(file.name))
        for copy in copies:
            if copy is not keep:
                saved += copy.stat().st_size
                copy.unlink()
                copy.symlink_to(keep.name)
    return saved


def main() -> None:
    """Relink every directory below the arguments."""
    saved = 0
    for root in map(Path, sys.argv[1:]):
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            if not folder.is_symlink():
                saved += relink(folder)
    print(f"relinked: {saved / 1e6:.0f} MB of copies", flush=True)


if __name__ == "__main__":
    main()
