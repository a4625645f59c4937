"""The size of an update: the layers of a new image that the image before it lacks.

An engine that has one image downloads only the other layers of the next one: layers are named by
the digest of their compressed bytes (OCI image specification, "Content Descriptors").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.errors import GoneError, RegistryError
from builder.publish.remote_image import (
    BASE_DIGEST,
    BASE_NAME,
    PlatformImage,
    images_in,
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
    """Digest of the image, or the index, that the tags point to."""
    size: int
    """Of the new image's layers that the other image lacks."""
    download: int
    """Of all its layers."""
    platform: str = ""
    """``linux/amd64``, where the new image is one of several of an index; else empty."""

    @property
    def text(self) -> str:
        """The sizes in one line."""
        platform = f" for {self.platform}" if self.platform else ""
        who = f"for somebody who has the image of {' and '.join(self.tags)}{platform}"
        return f"{sizes.shown(self.size)} {who}, {sizes.shown(self.download)} anew"


def updates_of(
    repository: Repository,
    tags: Sequence[str],
    before: str,
    new: Sequence[PlatformImage],
    log: Log = lambda _: None,
) -> tuple[Update, ...]:
    """The updates from the image or index ``before`` (a digest; empty: none) of some tags.

    One for each of the new images; none for a platform without an image before: a tag can also be
    moved away from an image that cannot be read, and the log says so.  Raises ``FetchError``.
    """
    known = _images_before(repository, before) if before else ()
    if before and not known:
        log(
            f"the update of {' and '.join(tags)} cannot be measured, so no [budget] limits it: the "
            f"image before, {before}, is gone or cannot be read"
        )
    found = []
    for image in new:
        old = _of_platform(known, image)
        if old is not None:
            here, there = layer_sizes(image.manifest), layer_sizes(old.manifest)
            size = sum(size for digest, size in here.items() if digest not in there)
            platform = image.platform if len(new) > 1 else ""
            found.append(Update(tuple(tags), before, size, sum(here.values()), platform))
    return tuple(found)


def _images_before(repository: Repository, digest: str) -> tuple[PlatformImage, ...]:
    """The images that tags point to; none where they are gone or cannot be read."""
    try:
        there = repository.manifest(digest)
        return images_in(repository, there) if there else ()
    except (RegistryError, GoneError):
        return ()


def _of_platform(known: Sequence[PlatformImage], new: PlatformImage) -> PlatformImage | None:
    """The image before of the platform of a new one; an image may not name its platform."""
    names = {"", new.platform}
    return next((each for each in known if not new.platform or each.platform in names), None)


def over_budget(
    repository: Repository,
    updates: Sequence[Update],
    budget: int | None,
    new: Sequence[PlatformImage],
) -> str:
    """Why updates have more than ``budget`` megabytes, in lines; empty where none does.

    ``new`` are the images that they lead to.  Raises ``FetchError``.
    """
    lines: list[str] = []
    for each in updates:
        if budget is not None and each.size > budget * MB:
            image = next(one for one in new if each.platform in {"", one.platform})
            lines += [f"download: {each.text}", *_reasons(repository, each, image)]
    return "\n".join(lines)


def _reasons(repository: Repository, update: Update, new: PlatformImage) -> Iterator[str]:
    """The new layers of an image, and how it differs from the image before below the engine."""
    before = _of_platform(_images_before(repository, update.before), new)
    if before is None:
        return
    yield from _new_layers(before.manifest, new)
    old, now = _labels(before.config), _labels(new.config)
    if old.get(BASE_NAME) != now.get(BASE_NAME):
        names = (labels.get(BASE_NAME, "unknown") for labels in (old, now))
        yield f"its base is another one: {' before, now '.join(names)}"
    elif old.get(BASE_DIGEST) != now.get(BASE_DIGEST):
        yield f"its base {now.get(BASE_NAME)} was built again, with other bytes"
    kinds = [_compressions(each.manifest) for each in (before, new)]
    if kinds[0] != kinds[1]:
        yield f"its layers are {kinds[1]}, before {kinds[0]}"


def _new_layers(before: Manifest, new: PlatformImage) -> Iterator[str]:
    """The layers that an image has and the one before lacks, the largest first."""
    layers = new.manifest.body.layers or []
    known = layer_sizes(before)
    made = zip(layers, created_by(new.config, len(layers)), strict=True)
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


def _compressions(image: Manifest) -> str:
    """The compressions of an image's layers, by their media types: "gzip", "gzip and zstd"."""
    layers = image.body.layers or []
    found = {layer.mediaType.rpartition(".")[2].rpartition("+")[2] for layer in layers}
    return " and ".join(sorted(found))
