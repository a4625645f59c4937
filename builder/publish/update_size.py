"""The size of an update: the layers of a new image that the image before it lacks.

An engine that has one image downloads only the other layers of the next one: layers are named by
the digest of their compressed bytes (OCI image specification, "Content Descriptors").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from builder.core import sizes
from builder.core.errors import GoneError, RegistryError
from builder.core.log import Log
from builder.publish.registry import Repository
from builder.publish.remote_image import PlatformImage, images_in, layer_sizes

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Update:
    """The update of somebody who has the image that tags point to; sizes are bytes."""

    tags: tuple[str, ...]
    before: str
    """Digest of the image, or the index, that the tags point to."""
    size: int
    """Bytes of the new image's layers that the other image lacks."""
    download: int
    """Bytes of all its layers."""
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
    dropped: Collection[str] = (),
) -> tuple[Update, ...]:
    """The updates from the image or index ``before`` (a digest; empty: none) of some tags.

    One for each of the new images; none for a platform without an image before: a tag can also be
    moved away from an image that cannot be read, and the log says so.  Raises ``FetchError``;
    ``RegistryError`` where the tags would lose a platform that is not in ``dropped``.
    """
    known: tuple[PlatformImage, ...] = ()
    if before:
        with suppress(RegistryError, GoneError):
            there = repository.manifest(before)
            known = images_in(repository, there) if there else ()
    if before and not known:
        log(
            f"the update of {' and '.join(tags)} cannot be measured, so no [budget] limits it: the "
            f"image before, {before}, is gone or cannot be read; its platforms are not known either"
        )
    has = [each.platform for each in new]
    lost = [each.platform for each in known if each.platform not in {"", *dropped, *has}]
    if lost:
        present = f"the new image has {' and '.join(filter(None, has)) or 'no named platform'}"
        raise RegistryError(
            f"{' and '.join(tags)} would lose {' and '.join(lost)}: no tag was moved",
            f"{repository.name}@{before} has it; {present}",
            "name an image or an index with all platforms; to drop it all the same: "
            + " ".join(f"--drop-platform {each}" for each in lost),
        )
    found = []
    for image in new:
        # Some images do not name a platform.
        names = {"", image.platform}
        same = (each for each in known if not image.platform or each.platform in names)
        if old := next(same, None):
            here, had = layer_sizes(image.manifest), layer_sizes(old.manifest)
            size = sum(size for digest, size in here.items() if digest not in had)
            platform = image.platform if len(new) > 1 else ""
            found.append(Update(tuple(tags), before, size, sum(here.values()), platform))
    return tuple(found)


def require_within(
    updates: Iterable[Update], budget: int | None, log: Log, what: str, hint: str
) -> None:
    """Log the updates; raise ``RegistryError`` where one has more than ``budget`` megabytes.

    ``what`` did not happen ("latest is not moved"), ``hint`` is the way to do it all the same.
    """
    over = []
    for each in updates:
        log(f"download: {each.text}")
        if budget is not None and each.size > budget * MB:
            over.append(f"download: {each.text}")
    if over:
        raise RegistryError(
            f"{what}: the update has more than the {budget} MB of [budget]", "\n".join(over), hint
        )
