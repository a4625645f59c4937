"""The entries of a layer: files with their properties, hard links, and whiteouts.

OCI image specification (https://github.com/opencontainers/image-spec), layer.md: "Whiteouts" and
"Hardlinks".
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Generic, Literal, Protocol, TypeVar

from builder.tools.layers import tar
from builder.tools.layers.blob import BLOCK, Stream, opened
from builder.tools.layers.image import DamagedImageError
from builder.tools.layers.tar import Kind, Member

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
LONGEST_PATH = 4096  # PATH_MAX: no kernel takes a longer one
Hides = Literal["", "path", "below"]
"""The paths that an entry removes from the layers below: none, its own, all below its own."""


@dataclass(frozen=True, slots=True)
class Node:
    """One path of a tree of files."""

    kind: Kind
    mode: int = 0
    """Permission bits with set-user-ID, set-group-ID and sticky bit: 0o4755."""
    user: int = 0
    group: int = 0
    time: float = 0.0
    """Modification time, seconds since 1970."""
    size: int = 0
    digest: str = ""
    """sha256 (hex) of a file's content."""
    target: str = ""
    """A link's, as written; a device's kind and numbers: ``c 1:3``."""
    same_file: str = ""
    """For a file with several names: the first of them, sorted.  Empty for the others."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Extended attributes in the order of their names; values in hex."""
    head: bytes = b""
    """The first bytes of a file."""


class HasKind(Protocol):
    """The kept value of an entry: a ``Node``, or a value made of it."""

    @property
    def kind(self) -> str:
        """As ``Node.kind``."""

    @property
    def target(self) -> str:
        """As ``Node.target``."""


N = TypeVar("N", bound=HasKind)


@dataclass(frozen=True, slots=True)
class LayerEntry(Generic[N]):
    """One entry of a layer; its path is absolute, but links in it are not followed."""

    path: str
    node: N
    hides: Hides = ""
    shares: str = ""
    """For a hard link: the path that it shares its content with."""


class Content:
    """The bytes of a file of a layer: read forward once, and hashed."""

    def __init__(self, stream: Stream, size: int) -> None:
        self._stream = stream
        self._left = size
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer at the end."""
        found = self._stream.read(min(size, self._left))
        self._left -= len(found)
        self._hash.update(found)
        return found

    def blocks(self) -> Iterator[bytes]:
        """The rest, in pieces.  Raises ``DamagedImageError`` where the layer ends before."""
        while self._left:
            block = self._stream.some(min(self._left, BLOCK))
            if not block:
                raise DamagedImageError(f"the layer ends {self._left:,} bytes before its file")
            self._left -= len(block)
            self._hash.update(block)
            yield block

    def digest(self) -> str:
        """sha256 (hex) of all bytes; reads the rest."""
        for _ in self.blocks():
            pass
        return self._hash.hexdigest()


Look = Callable[[str, Node, Content | None], N]
"""Makes the kept value of an entry, from its path, its properties and a regular file's content."""


def entries(blob: Path, look: Look[N], stop: Event | None = None) -> Iterator[LayerEntry[N]]:
    """The entries of a layer, in its order.

    Raises the exceptions that ``damage_reported`` catches, and ``StoppedError`` as ``opened``.
    """
    with opened(blob, stop) as stream:
        for member in tar.members(stream):
            path, hides = _place(member)
            is_link = member.type == tar.HARD_LINK
            if path == "/" and not hides and member.kind != "directory":
                continue  # as the engine does
            regular = member.kind == "file" and not is_link and not hides
            content = Content(stream, member.size) if regular else None
            shares = _absolute(member.link) if is_link and not hides else ""
            yield LayerEntry(path, look(path, _node(member), content), hides, shares)


def _node(member: Member) -> Node:
    _require_short(member.link)
    return Node(
        member.kind,
        member.mode,
        member.user,
        member.group,
        member.time,
        member.size,
        target=member.link if member.kind != "file" else "",
        attributes=member.attributes,
    )


def _place(member: Member) -> tuple[str, Hides]:
    """The absolute path of an entry, and whether it hides paths of the layers below."""
    path = _absolute(member.name)
    folder, name = posixpath.split(path)
    if name == OPAQUE:
        return folder, "below"
    if not name.startswith(WHITEOUT):
        return path, ""
    hidden = name.removeprefix(WHITEOUT)
    if hidden in ("", ".", ".."):
        raise DamagedImageError(f"{path} is the whiteout of no file")
    return posixpath.join(folder, hidden), "path"


def _absolute(name: str) -> str:
    _require_short(name)
    return posixpath.normpath(f"/{name.lstrip('/')}")


def _require_short(name: str) -> None:
    if len(name) > LONGEST_PATH:
        raise DamagedImageError(f"a path of {len(name):,} characters: {name[:80]!r}")
