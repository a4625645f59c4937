"""The identity of a source tree: a hash over the properties that git records of a directory."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from builder.core.errors import FetchError

IGNORED = {".git", "__pycache__", ".DS_Store"}


def files(root: Path) -> Iterator[Path]:
    """Every file and link below ``root``, sorted, without files that never belong to a source."""
    for folder, names, found in os.walk(root):
        names[:] = sorted(name for name in names if name not in IGNORED)
        links = [name for name in names if (Path(folder) / name).is_symlink()]
        for name in sorted([*found, *links]):
            if name not in IGNORED:
                yield Path(folder) / name


def _inside(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    except RuntimeError as error:  # Python before 3.13: the link leads to itself
        raise FetchError(f"{path} is a broken link", str(error)) from error


def identity(root: Path) -> str:
    """sha256 (hex) over the path, the kind, the executable bit and the content of every file.

    Raises ``FetchError`` for a link that leaves the tree, or a file that is neither file nor link.
    """
    total = hashlib.sha256()
    for file in files(root):
        name = file.relative_to(root).as_posix()
        mode = file.lstat().st_mode
        if stat.S_ISLNK(mode):
            target = file.readlink()
            if target.is_absolute() or not _inside(file.parent / target, root):
                raise FetchError(f"{file} links to {target}, outside its tree")
            kind, content = "link", os.fsencode(target)
        elif stat.S_ISREG(mode):
            kind = "program" if mode & stat.S_IXUSR else "file"
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").digest()
        else:
            raise FetchError(f"{file} is neither a file nor a link")
        head = f"{kind}\0{name}\0{len(content)}\0".encode("utf-8", "surrogateescape")
        total.update(head + content)
    return total.hexdigest()
