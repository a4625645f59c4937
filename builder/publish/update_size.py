"""The size of an update: the layers of a new image that the image before it lacks.

An engine that has one image downloads only the other layers of the next one: layers are named by
the digest of their compressed bytes (OCI image specification, "Content Descriptors").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.errors import RegistryError
from builder.publish.remote_image import (
    BASE_DIGEST,
    BASE_NAME,
    configuration,
    image_manifest,
    layer_sizes,
)
from builder.tools import sizes
from builder.tools.layers import created_by
from builder.tools.log import Log
from builder.tools.registry.client import Manifest, Repository

MB = 1_000_000
MOST_LAYERS = 3
"""New layers that an error names, the largest."""
LONGEST = 60
"""Characters of the instruction that made a layer."""


@dataclass(frozen=True, slots=True)
class Update:
    """The update of somebody who has the image that tags point to; sizes are bytes."""

    tags: tuple[str, ...]
    before: str
    """Digest of the image that the tags point to."""
    size: int
    """Of the new image's layers that the other image lacks."""
    download: int
    """Of all its layers."""

    @property
    def text(self) -> str:
        """The sizes in one line."""
        who = f"for somebody who has the image of {' and '.join(self.tags)}"
        return f"{sizes.shown(self.size)} {who}, {sizes.shown(self.download)} anew"


def update_of(
    repository: Repository,
    tags: Sequence[str],
    before: str,
    new: Manifest,
    log: Log = lambda _: None,
) -> Update | None:
    """The update from the image ``before`` (a digest; empty: none) of some tags to a new one.

    None where there is no image to compare with: a tag can be moved away from one that cannot be
    read, and the log says so.  Of an index, the image for linux/amd64 counts.  Raises
    ``RegistryError`` where the new image cannot be read, ``FetchError``.
    """
    if not before:
        return None
    known = _layers_before(repository, before)
    if known is None:
        log(
            f"the update of {' and '.join(tags)} cannot be measured, so no [budget] limits it: the "
            f"image before, {before}, is gone or cannot be read"
        )
        return None
    layers = layer_sizes(image_manifest(repository, new))
    size = sum(size for digest, size in layers.items() if digest not in known)
    return Update(tuple(tags), before, size, sum(layers.values()))


def _layers_before(repository: Repository, digest: str) -> Mapping[str, int] | None:
    """The layers of the image that tags point to; None where it is gone or cannot be read."""
    try:
        there = repository.manifest(digest)
        return layer_sizes(image_manifest(repository, there)) if there else None
    except RegistryError:
        return None


def over_budget(
    repository: Repository,
    update: Update,
    budget: int | None,
    new: Manifest,
    config: Callable[[], Mapping[str, Any]],
) -> str:
    """Why an update has more than ``budget`` megabytes, in lines; empty where it does not.

    ``config`` gives the new image's configuration.  Raises ``RegistryError``, ``FetchError``.
    """
    if budget is None or update.size <= budget * MB:
        return ""
    return "\n".join([f"download: {update.text}", *_reasons(repository, update, new, config())])


def _reasons(
    repository: Repository, update: Update, new: Manifest, config: Mapping[str, Any]
) -> Iterator[str]:
    """The new layers of an image, and how it differs from the image before below the engine."""
    there = repository.manifest(update.before)
    if there is None:
        return
    before, image = (image_manifest(repository, each) for each in (there, new))
    yield from _new_layers(before, image, config)
    old, now = _labels(configuration(repository, there)), _labels(config)
    if old.get(BASE_NAME) != now.get(BASE_NAME):
        names = (labels.get(BASE_NAME, "unknown") for labels in (old, now))
        yield f"its base is another one: {' before, now '.join(names)}"
    elif old.get(BASE_DIGEST) != now.get(BASE_DIGEST):
        yield f"its base {now.get(BASE_NAME)} was built again, with other bytes"
    kinds = [_compressions(each) for each in (before, image)]
    if kinds[0] != kinds[1]:
        yield f"its layers are {kinds[1]}, before {kinds[0]}"


def _new_layers(
    before: Manifest | None, image: Manifest | None, config: Mapping[str, Any]
) -> Iterator[str]:
    """The layers that an image has and the one before lacks, the largest first."""
    layers = (image.body.layers or []) if image else []
    known = layer_sizes(before)
    made = zip(layers, created_by(config, len(layers)), strict=True)
    added = {each.digest: (each.size, how) for each, how in made if each.digest not in known}
    found = sorted(added.items(), key=lambda item: item[1][0], reverse=True)
    for digest, (size, how) in found[:MOST_LAYERS]:
        yield f"new layer of {sizes.shown(size)}: {how[:LONGEST] or digest}"
    if left := found[MOST_LAYERS:]:
        total = sum(size for _, (size, _) in left)
        yield f"{len(left)} more new layers of {sizes.shown(total)}"


def _labels(config: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = (config.get("config") or {}).get("Labels") or {}
    return found


def _compressions(image: Manifest | None) -> str:
    """The compressions of an image's layers, by their media types: "gzip", "gzip and zstd"."""
    layers = (image.body.layers or []) if image else []
    found = {layer.mediaType.rpartition(".")[2].rpartition("+")[2] for layer in layers}
    return " and ".join(sorted(found))
