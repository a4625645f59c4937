"""Two images compared: their files, their configurations and their layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Any

from builder.docker.blobs import Blobs
from builder.image.entries import LayerEntry, Node
from builder.image.files import aspects, compare_trees
from builder.image.image import damage_reported, manifest_of
from builder.image.image_tree import ImageTree, LayerFiles, read_image
from builder.image.results import Comparison, Difference, LayerDifference, LayerState

TIME = "created"  # the last part of the names of times, as in org.opencontainers.image.created


def compare_images(before: tuple[str, Blobs], after: tuple[str, Blobs], work: Path) -> Comparison:
    """Two images by their names and blobs.

    Images with one digest are equal, and nothing else of them is read.  ``work``: a directory that
    takes copies of the files that differ.  Raises ``UntriedError`` where an image is damaged,
    ``SpaceError`` where its files do not fit.
    """
    with damage_reported():
        digests = manifest_of(before[1])[0], manifest_of(after[1])[0]
    if digests[0] == digests[1]:
        return Comparison(before[0], after[0], digests, 0, ())
    known: dict[str, tuple[LayerEntry[Node], ...]] = {}
    old, new = read_image(*before, known), read_image(*after, known)
    values = list(_values(old, new))
    return replace(
        compare_trees(old, new, work),
        digests=digests,
        config=tuple(each for each in values if not each.name.endswith(TIME)),
        times=tuple(each for each in values if each.name.endswith(TIME)),
        layers=tuple(_layers(old.layers, new.layers)),
    )


def _values(before: ImageTree, after: ImageTree) -> Iterator[Difference[tuple[str, ...]]]:
    old, new = dict(_flat(_described(before))), dict(_flat(_described(after)))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield Difference(name, old.get(name, ()), new.get(name, ()))


def _described(image: ImageTree) -> dict[str, Any]:
    config = {name: value for name, value in image.config.items() if name != "rootfs"}
    parts = ("config", "layers")
    manifest = {name: value for name, value in image.manifest.items() if name not in parts}
    return {**config, "manifest": manifest}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for number, inner in enumerate(value, 1):
            yield from _flat(inner, f"{name}.{number}")
    elif value is not None:
        yield name, tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _layers(before: Sequence[LayerFiles], after: Sequence[LayerFiles]) -> Iterator[LayerDifference]:
    """The layers in pairs: layers with the same tar first, the others between them in order."""
    ids = [each.diff_id for each in before], [each.diff_id for each in after]
    for _, a, b, c, d in SequenceMatcher(None, *ids, autojunk=False).get_opcodes():
        for old, new in zip_longest(before[a:b], after[c:d]):
            yield _layer(old, new)


def _layer(before: LayerFiles | None, after: LayerFiles | None) -> LayerDifference:
    old, new = before and before.side, after and after.side
    if before is None or after is None:
        return LayerDifference(old, new, "added" if before is None else "removed")
    if before.diff_id != after.diff_id:
        return LayerDifference(old, new, *_entries(before.entries, after.entries))
    same = before.side.digest == after.side.digest
    return LayerDifference(old, new, "equal" if same else "compression")


def _entries(
    before: Sequence[LayerEntry[Node]], after: Sequence[LayerEntry[Node]]
) -> tuple[LayerState, tuple[str, ...]]:
    old = {(each.path, each.hides): each for each in before}
    new = {(each.path, each.hides): each for each in after}
    found = {
        key[0]: _differs(old[key], new[key]) if key in old and key in new else True
        for key in sorted(old.keys() | new.keys())
    }
    changed = tuple(path for path, differs in found.items() if differs)
    if changed:
        return "files", changed
    times = tuple(key[0] for key in old if old[key].node.time != new[key].node.time)
    if times:
        return "times", times
    return ("order" if list(old) != list(new) else "tar"), ()


def _differs(before: LayerEntry[Node], after: LayerEntry[Node]) -> bool:
    found = set(aspects(before.node, after.node)) - {"time"}
    return bool(found) or before.shares != after.shares
