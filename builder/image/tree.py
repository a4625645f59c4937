"""Files with their properties: of an image as a container sees it, of a directory, or one file."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.core.errors import WorldError
from builder.image.entries import Node
from builder.image.layers import first_names

FILE = "/"
"""The path of a single file, which may have another name in the other tree."""
HEAD = 64  # bytes of a file that tell its format


@dataclass(frozen=True, slots=True)
class FilesTree:
    """A directory, or one file, on this machine."""

    name: str
    root: Path
    nodes: Mapping[str, Node] = field(repr=False)

    def extract(self, paths: Collection[str], folder: Path) -> Mapping[str, Path]:  # noqa: ARG002
        """The files themselves; an image's tree gives copies in ``folder``."""
        single = self.root.is_file()
        return {path: self.root if single else self.root / path[1:] for path in paths}


def read_files(root: Path) -> FilesTree:
    """A directory, or one file; the path of a single file is ``FILE``.

    A link to either is followed.  Raises ``WorldError`` where something cannot be read.
    """
    name = str(root)
    try:
        root = root.resolve(strict=True)
        found = {path: _node(file) for path, file in _below(root)}
        return FilesTree(name, root, with_first_names(found, _shared(root, found)))
    except OSError as error:
        what = error.filename or root
        raise WorldError(f"cannot read {what}", error.strerror or str(error)) from error


def with_first_names(nodes: dict[str, Node], places: Mapping[str, object]) -> dict[str, Node]:
    """The nodes with ``same_file`` set; ``places``: as ``first_names``."""
    named = first_names(places).items()
    return {**nodes, **{path: replace(nodes[path], same_file=first) for path, first in named}}


def _below(root: Path) -> Iterator[tuple[str, Path]]:
    """The paths of a tree without its root; a directory comes before its contents."""
    if not root.is_dir():
        yield FILE, root
        return
    for folder, folders, files in os.walk(root, onerror=_raise):
        for name in sorted([*folders, *files]):
            path = Path(folder, name)
            yield f"/{path.relative_to(root)}", path


def _raise(error: OSError) -> None:
    raise error


def _shared(root: Path, nodes: Mapping[str, Node]) -> dict[str, object]:
    found: dict[str, object] = {}
    for path, node in nodes.items():
        if node.kind == "file" and path != FILE:
            status = (root / path[1:]).lstat()
            if status.st_nlink > 1:
                found[path] = (status.st_dev, status.st_ino)
    return found


def _node(path: Path) -> Node:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    common = (mode, status.st_uid, status.st_gid, status.st_mtime)
    if stat.S_ISLNK(status.st_mode):
        return Node("link", *common, target=str(path.readlink()))
    attributes = tuple(
        (name, os.getxattr(path, name, follow_symlinks=False).hex())
        for name in sorted(os.listxattr(path, follow_symlinks=False))
    )
    if stat.S_ISDIR(status.st_mode):
        return Node("directory", *common, attributes=attributes)
    if stat.S_ISREG(status.st_mode):
        with path.open("rb") as file:
            head = file.read(HEAD)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Node("file", *common, status.st_size, digest, attributes=attributes, head=head)
    if stat.S_ISFIFO(status.st_mode):
        return Node("fifo", *common)
    kinds = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFSOCK: "s"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "?")
    place = f"{kind} {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return Node("device", *common, target=place)
