"""The files of an image: its layers laid over each other.

OCI image specification (https://github.com/opencontainers/image-spec), layer.md: "Applying
Changesets", "Whiteouts" and "Hardlinks".  Where the specification leaves a choice, the code does as
containerd does (archive/tar.go, onto overlayfs): links are followed in the folder of an entry where
they are of its own layer; where a layer below has a link or a file in the place of a folder, the
folder replaces it; a hard link is for a file of its own layer that comes before it.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple

from builder.image.entries import LayerEntry, N
from builder.image.image import DamagedImageError

MOST_LINKS = 255  # that are followed for one path, as in containerd
MOST_STEPS, MOST_FOLDERS = 1 << 24, 1 << 20
"""Followed parts of a layer's paths, and folders of an image: no image has nearly as many."""


class Placed(NamedTuple, Generic[N]):
    """A path of an image, and where its content is: its layer (from 0), and its path there.

    The names of one file have the same place.
    """

    node: N
    layer: int
    path: str


def final(layers: Sequence[Sequence[LayerEntry[N]]]) -> dict[str, Placed[N]]:
    """The paths that a container sees.

    Raises ``DamagedImageError`` where a layer cannot be applied.
    """
    image: _Tree[N] = _Tree()
    for number, entries in enumerate(layers):
        try:
            for path, placed in _applied(image, number, entries).nodes.items():
                image.put(path, placed)
        except DamagedImageError as error:
            raise DamagedImageError(f"layer {number + 1}: {error}") from None
    return image.nodes


def first_names(places: Mapping[str, object]) -> dict[str, str]:
    """For each name of a file with several: the first of them, sorted.

    ``places`` has equal values for the names of one file.
    """
    names: dict[object, list[str]] = defaultdict(list)
    for path, place in places.items():
        names[place].append(path)
    return {
        path: first
        for group in names.values()
        if len(group) > 1
        for first in [min(group)]
        for path in group
    }


def _applied(below: _Tree[N], number: int, entries: Sequence[LayerEntry[N]]) -> _Tree[N]:
    """The files of a layer; paths that its whiteouts hide are removed from the layers below."""
    own: _Tree[N] = _Tree()
    for entry in entries:
        path = own.followed(entry.path)
        if entry.hides:
            below.remove(path, itself=entry.hides == "path")
            continue
        placed = Placed(entry.node, number, entry.path)
        if entry.shares:
            own.remove(path, itself=True)
            shared = own.nodes.get(own.followed(entry.shares))
            if shared is None or shared.node.kind == "directory":
                what = "a directory" if shared else "not in the layer before it"
                raise DamagedImageError(
                    f"{entry.path} is a hard link to {entry.shares}, which is {what}"
                )
            placed = shared
        own.put(path, placed)
    return own


class _Tree(Generic[N]):
    """Paths with the paths below them; a folder may have no entry of its own."""

    def __init__(self) -> None:
        self.nodes: dict[str, Placed[N]] = {}
        self._below: dict[str, dict[str, None]] = {}
        self._steps = 0

    def put(self, path: str, placed: Placed[N]) -> None:
        """Put a path here, in the place of an earlier one; a folder keeps the paths below it."""
        before = self.nodes.pop(path, None)
        if placed.node.kind != "directory" or (before and before.node.kind != "directory"):
            self.remove(path, itself=True)
        self.nodes[path] = placed
        while path != "/":
            folder = posixpath.dirname(path)
            siblings = self._below.get(folder)
            if siblings is None:
                siblings = self._below[folder] = {}
                if len(self._below) > MOST_FOLDERS:
                    raise DamagedImageError(f"more than {MOST_FOLDERS:,} folders")
                before = self.nodes.get(folder)
                if before is not None and before.node.kind != "directory":
                    del self.nodes[folder]
            if path in siblings:
                return  # and so are its folders
            siblings[path] = None
            path = folder

    def remove(self, path: str, *, itself: bool) -> None:
        """Remove the paths below a path, and the path itself if ``itself``."""
        if itself:
            self.nodes.pop(path, None)
            if path != "/":
                self._below.get(posixpath.dirname(path), {}).pop(path, None)
        waiting = [path]
        while waiting:
            for each in self._below.pop(waiting.pop(), ()):
                self.nodes.pop(each, None)
                waiting.append(each)

    def followed(self, path: str) -> str:
        """A path without links in its folder.

        Raises ``DamagedImageError`` where the folder is a file, or its links are in a circle.
        """
        folder, name = posixpath.split(path)
        if folder == "/" or folder in self._below:
            return path
        return posixpath.join("/", *self._folders(folder), name)

    def _folders(self, folder: str) -> list[str]:
        done: list[str] = []
        waiting = folder.strip("/").split("/")[::-1]
        links = 0
        while waiting:
            part = waiting.pop()
            self._steps += 1
            if links > MOST_LINKS or self._steps > MOST_STEPS:
                raise DamagedImageError(f"{folder} has too many links")
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            here = self.nodes.get("/" + "/".join([*done, part]))
            if here is None or here.node.kind == "directory":
                done.append(part)
                continue
            if here.node.kind != "link":
                raise DamagedImageError(f"{folder} is not a directory")
            links += 1
            target = here.node.target
            waiting += target.split("/")[::-1]
            done = [] if target.startswith("/") else done
        return done
