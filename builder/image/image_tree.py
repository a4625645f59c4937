"""The files of an image, read from its blobs: the final file system, and the files of each
layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from builder.core.files import require_space
from builder.docker.blobs import Blobs
from builder.image import image as images
from builder.image.entries import Content, LayerEntry, Node, entries
from builder.image.image import DamagedImageError
from builder.image.layers import Placed, final
from builder.image.results import LayerSide
from builder.image.tree import HEAD, with_first_names


class LayerFiles(NamedTuple):
    """A layer of an image, and its files."""

    side: LayerSide
    diff_id: str
    """The unpacked tar's digest, from the image's configuration."""
    entries: tuple[LayerEntry[Node], ...]


@dataclass(frozen=True, slots=True)
class ImageTree:
    """The files of an image as a container sees them."""

    name: str
    digest: str
    """Its manifest's."""
    manifest: Mapping[str, Any] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    """OCI image configuration (image-spec: config.md)."""
    layers: tuple[LayerFiles, ...] = field(repr=False)
    nodes: Mapping[str, Node] = field(repr=False)
    placed: Mapping[str, Placed[Node]] = field(repr=False)
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
            place = self.placed[path]
            wanted[place.layer][place.path] = folder / self.nodes[path].digest
        with images.damage_reported():
            for number, copies in wanted.items():
                _copy(self.blobs.file(self.layers[number].side.digest), copies)
        return {path: folder / self.nodes[path].digest for path in paths}


def read_image(
    name: str, blobs: Blobs, known: dict[str, tuple[LayerEntry[Node], ...]] | None = None
) -> ImageTree:
    """Read an image from its blobs; from an index, as ``manifest_of``.

    ``known``: the entries of layers by digest, so that no layer is read twice; it is extended.
    Raises ``UntriedError`` where a blob is missing or damaged.
    """
    known = {} if known is None else known
    with images.damage_reported():
        digest, manifest = images.manifest_of(blobs)
        config = images.document(blobs.file(manifest["config"]["digest"]))
        digests = [part["digest"] for part in manifest["layers"]]
        missing = [digest for digest in dict.fromkeys(digests) if digest not in known]
        with images.two_at_a_time() as (pool, stop):
            read = pool.map(partial(_entries, stop=stop), map(blobs.file, missing))
            known.update(zip(missing, read, strict=True))
        found = _layers(manifest, config, known)
        placed = final([layer.entries for layer in found])
    nodes = {path: each.node for path, each in placed.items()}
    places = {
        path: (each.layer, each.path) for path, each in placed.items() if each.node.kind == "file"
    }
    nodes = with_first_names(nodes, places)
    return ImageTree(name, digest, manifest, config, found, nodes, placed, blobs)


def _entries(blob: Path, stop: Event) -> tuple[LayerEntry[Node], ...]:
    def hashed(_: str, node: Node, content: Content | None) -> Node:
        if content is None:
            return node
        head = content.read(HEAD)
        return replace(node, digest=content.digest(), head=head)

    return tuple(entries(blob, hashed, stop))


def _layers(
    manifest: Mapping[str, Any],
    config: Mapping[str, Any],
    entries: Mapping[str, tuple[LayerEntry[Node], ...]],
) -> tuple[LayerFiles, ...]:
    parts = manifest["layers"]
    diff_ids = config["rootfs"]["diff_ids"]
    rows = zip(parts, diff_ids, images.created_by(config, len(parts)), strict=True)
    return tuple(
        LayerFiles(
            LayerSide(number, part["digest"], part["size"], by), diff_id, entries[part["digest"]]
        )
        for number, (part, diff_id, by) in enumerate(rows, 1)
    )


def _copy(blob: Path, copies: Mapping[str, Path]) -> None:
    waiting = dict(copies)

    def look(path: str, node: Node, content: Content | None) -> Node:
        # A layer may have a path twice; the last one counts.
        if content is not None and path in waiting:
            with waiting[path].open("wb") as copy:
                copy.writelines(content.blocks())
            if content.digest() == waiting[path].name:
                del waiting[path]
        return node

    for _ in entries(blob, look):
        if not waiting:
            return
    raise DamagedImageError(f"{blob.name} has no {', '.join(waiting)}")
