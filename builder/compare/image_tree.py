"""The files of an image, read from its blobs: the final file system, and those of each layer."""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import IO, Any, NamedTuple

from builder.compare.tree import HEAD, Kind, Node, with_first_names
from builder.tools import layers
from builder.tools.docker.blobs import Blobs
from builder.tools.files import require_space
from builder.tools.layers import BLOCK, Hides

ATTRIBUTE = "SCHILY.xattr."  # of an extended attribute in a PAX header, as GNU tar writes it


class LayerEntry(NamedTuple):
    """One entry of the tar of a layer."""

    path: str
    hides: Hides
    node: Node
    shares: str = ""
    """For a hard link: the path that it shares its content with."""


@dataclass(frozen=True, slots=True)
class LayerFiles:
    """A layer: its place in the image, its digests and its entries."""

    number: int
    """From 1, the lowest."""
    digest: str
    """Of the blob, as it is downloaded."""
    diff_id: str
    """Of the unpacked tar, from the image's configuration."""
    size: int
    """Bytes of the blob."""
    created_by: str
    """The instruction that made it, from the image's history."""
    entries: tuple[LayerEntry, ...] = field(repr=False)


class _Place(NamedTuple):
    """Where the content of a file is: the layer (from 0), and its path there."""

    layer: int
    path: str


@dataclass(frozen=True, slots=True)
class ImageTree:
    """The files of an image as a container sees them."""

    name: str
    digest: str
    """Of its manifest."""
    manifest: Mapping[str, Any] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    """OCI image configuration (image-spec: config.md)."""
    layers: tuple[LayerFiles, ...] = field(repr=False)
    nodes: Mapping[str, Node] = field(repr=False)
    places: Mapping[str, _Place] = field(repr=False)
    blobs: Blobs = field(repr=False)

    def extract(self, paths: Collection[str], folder: Path) -> Mapping[str, Path]:
        """Copies of these files; each layer that has one of them is read once more.

        Raises ``SpaceError`` where they do not fit, ``UntriedError`` where a layer is damaged.
        """
        folder.mkdir(parents=True)
        size = sum({self.nodes[path].digest: self.nodes[path].size for path in paths}.values())
        require_space(folder, size / 2**30, f"the comparison of {len(paths):,} files")
        wanted: dict[int, dict[str, Path]] = defaultdict(dict)
        for path in paths:
            place = self.places[path]
            wanted[place.layer][place.path] = folder / self.nodes[path].digest
        with layers.damage_reported():
            for number, copies in wanted.items():
                _copy(self.blobs.file(self.layers[number].digest), copies)
        return {path: folder / self.nodes[path].digest for path in paths}


def read_image(
    name: str, blobs: Blobs, known: dict[str, tuple[LayerEntry, ...]] | None = None
) -> ImageTree:
    """Read an image from its blobs; from an index, as ``manifest_of``.

    ``known``: the entries of layers by their digests, of which none is read twice; it is extended.
    Raises ``UntriedError`` where a blob is missing or damaged.
    """
    known = {} if known is None else known
    with layers.damage_reported():
        digest, manifest = layers.manifest_of(blobs)
        config = layers.document(blobs.file(manifest["config"]["digest"]))
        digests = [part["digest"] for part in manifest["layers"]]
        missing = [digest for digest in dict.fromkeys(digests) if digest not in known]
        with layers.two_at_a_time() as (pool, stop):
            read = pool.map(partial(_entries, stop=stop), map(blobs.file, missing))
            known.update(zip(missing, read, strict=True))
        found = _layers(manifest, config, known)
    nodes, places = _final([layer.entries for layer in found])
    return ImageTree(name, digest, manifest, config, found, nodes, places, blobs)


def _entries(blob: Path, stop: Event) -> tuple[LayerEntry, ...]:
    with layers.opened(blob, stop) as tar:
        return tuple(_entry(tar, member) for member in tar)


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> LayerEntry:
    path, hides = layers.place(member)
    shares = posixpath.normpath("/" + member.linkname) if member.islnk() else ""
    return LayerEntry(path, hides, _node(tar, member), shares)


def _node(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Node:
    headers = member.pax_headers.items()
    node = Node(
        _kind(member),
        member.mode & 0o7777,
        member.uid,
        member.gid,
        float(member.mtime),
        attributes=tuple(
            (name.removeprefix(ATTRIBUTE), value.encode(errors="surrogateescape").hex())
            for name, value in sorted(headers)
            if name.startswith(ATTRIBUTE)
        ),
    )
    if node.kind == "link":
        return replace(node, target=member.linkname)
    if node.kind == "device":
        letter = "c" if member.ischr() else "b"
        return replace(node, target=f"{letter} {member.devmajor}:{member.devminor}")
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        return node
    head = content.read(HEAD)
    digest = hashlib.sha256(head)
    while block := content.read(BLOCK):
        digest.update(block)
    return replace(node, size=member.size, digest=digest.hexdigest(), head=head)


def _kind(member: tarfile.TarInfo) -> Kind:
    if member.isdir():
        return "directory"
    if member.issym():
        return "link"
    if member.isfifo():
        return "fifo"
    return "file" if member.isreg() or member.islnk() else "device"


def _layers(
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    entries: Mapping[str, tuple[LayerEntry, ...]],
) -> tuple[LayerFiles, ...]:
    parts = manifest["layers"]
    diff_ids = config["rootfs"]["diff_ids"]
    rows = zip(parts, diff_ids, layers.created_by(config, len(parts)), strict=True)
    return tuple(
        LayerFiles(number, part["digest"], diff_id, part["size"], by, entries[part["digest"]])
        for number, (part, diff_id, by) in enumerate(rows, 1)
    )


def _final(found: Sequence[Sequence[LayerEntry]]) -> tuple[dict[str, Node], dict[str, _Place]]:
    """The files after all layers (image-spec, layer.md, "Applying Changesets")."""
    nodes: dict[str, Node] = {}
    places: dict[str, _Place] = {}
    for number, entries in enumerate(found):
        for entry in entries:
            # A whiteout does not apply to its own layer.
            for path in _hidden(entry, nodes):
                if places[path].layer < number:
                    del nodes[path], places[path]
            if entry.hides:
                continue
            shared = places.get(entry.shares)
            if shared is not None:
                nodes[entry.path], places[entry.path] = nodes[entry.shares], shared
            else:
                nodes[entry.path], places[entry.path] = entry.node, _Place(number, entry.path)
    files = {path: place for path, place in places.items() if nodes[path].kind == "file"}
    return with_first_names(nodes, files), places


def _hidden(entry: LayerEntry, nodes: Mapping[str, Node]) -> list[str]:
    """The paths that an entry hides, or that a file in the place of a directory does."""
    before = nodes.get(entry.path)
    if not entry.hides and (
        before is None or before.kind != "directory" or entry.node.kind == "directory"
    ):
        return []
    start = entry.path.rstrip("/") + "/"
    own = [entry.path] if before is not None and entry.hides != "below" else []
    return [*own, *(path for path in nodes if path.startswith(start))]


def _copy(blob: Path, copies: Mapping[str, Path]) -> None:
    """Write files of a layer to the files in ``copies``, by their paths; sha256 names each copy."""
    waiting = dict(copies)
    with layers.opened(blob) as tar:
        for member in tar:
            path, _ = layers.place(member)
            content = tar.extractfile(member) if path in waiting and member.isreg() else None
            # A layer may have a path twice; the last one counts.
            if content is not None and _copied(content, waiting[path]):
                del waiting[path]
            if not waiting:
                return
    raise ValueError(f"{blob.name} has no {', '.join(waiting)}")


def _copied(content: IO[bytes], file: Path) -> bool:
    digest = hashlib.sha256()
    with file.open("wb") as copy:
        while block := content.read(BLOCK):
            digest.update(block)
            copy.write(block)
    return digest.hexdigest() == file.name
