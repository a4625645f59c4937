"""An image of a registry: its digest, its age, its labels and its layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from builder.core import sizes
from builder.core.errors import GoneError, RegistryError
from builder.core.log import Log
from builder.engines.layout import CREATED, LABEL_KEY, LABEL_RECIPE_KEY, REVISION, VERSION
from builder.publish import transport
from builder.publish.registry import Manifest, Repository
from builder.publish.transport import Configuration

PLATFORM = "linux/amd64"
"""An index takes the labels of its image for this platform."""


@dataclass(frozen=True, slots=True)
class PlatformImage:
    """The image of one platform."""

    platform: str
    """``linux/amd64``; empty where its configuration does not name it."""
    manifest: Manifest
    config: Configuration


@dataclass(frozen=True, slots=True)
class RemotePlatform:
    """The image of one platform, by its digest."""

    digest: str
    download_size: int
    """Bytes of its compressed layers, each once."""
    key: str = ""
    """Its key, by its label; empty where it has none."""
    recipe_key: str = ""
    """Its key without the digests that its recipe leaves open, by its label; empty: as the key."""


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """An image of a registry, or an index of images for several platforms."""

    digest: str
    created: str
    """RFC 3339; empty where the image has no date."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """For an index, the labels of its image for linux/amd64, else of its first one."""
    download_size: int = 0
    """Bytes of the compressed layers, each once, of the image whose labels these are; 0: not
    known."""
    platforms: Mapping[str, RemotePlatform] = field(default_factory=dict)
    """The image of each platform ("linux/amd64"), in the order of the index."""

    @property
    def revision(self) -> str:
        """The commit that it was built from, by its label."""
        return self.labels.get(REVISION, "")

    @property
    def version(self) -> str:
        """Its version, by its label."""
        return self.labels.get(VERSION, "")


def remote_image(repository: Repository, reference: str) -> RemoteImage | None:
    """The image or the index that a tag or a digest points to, or None.

    Raises ``RegistryError`` where it is not an image, ``FetchError``.
    """
    found = repository.manifest(reference)
    return described(repository, found) if found is not None else None


def described(repository: Repository, manifest: Manifest) -> RemoteImage:
    """The image or the index of a manifest."""
    return of_images(manifest, images_in(repository, manifest))


def of_images(manifest: Manifest, images: Sequence[PlatformImage]) -> RemoteImage:
    """The image or the index of a manifest, whose images have been read."""
    if not images:
        return RemoteImage(manifest.digest, "")
    found = {
        each.platform: RemotePlatform(
            each.manifest.digest,
            sum(layer_sizes(each.manifest).values()),
            each.config.labels.get(LABEL_KEY, ""),
            each.config.labels.get(LABEL_RECIPE_KEY, ""),
        )
        for each in images
    }
    main = next((each for each in images if each.platform == PLATFORM), images[0])
    labels, size = main.config.labels, found[main.platform].download_size
    created = labels.get(CREATED) or main.config.created or ""
    named = {platform: each for platform, each in found.items() if platform}
    return RemoteImage(manifest.digest, created, labels, size, named)


def images_in(repository: Repository, manifest: Manifest) -> tuple[PlatformImage, ...]:
    """The image of a manifest; of an index, the first one for each platform, in its order.

    Images that the registry lacks are left out, and manifests that are no images: an index in an
    index, for example.  Raises
    ``RegistryError`` where one cannot be read, ``FetchError``.
    """
    if manifest.body.manifests is None:
        config = configuration(repository, manifest)
        return (PlatformImage(config.platform, manifest, config),)
    found: dict[str, Manifest] = {}
    for entry in manifest.body.manifests:
        platform = entry.platform.name if entry.platform else ""
        there = repository.manifest(entry.digest) if platform not in {"", *found} else None
        if there is not None and there.body.manifests is None:
            found[platform] = there
    return tuple(
        PlatformImage(platform, image, configuration(repository, image))
        for platform, image in found.items()
    )


def configuration(repository: Repository, image: Manifest) -> Configuration:
    """The configuration of an image; an empty one where its manifest names none.

    Raises ``RegistryError`` where it cannot be read.
    """
    config = image.body.config
    if config is None:
        return Configuration()
    what = f"the configuration of {repository.name}@{image.digest}"
    return transport.checked(Configuration, repository.blob(config.digest), what)


def layer_sizes(image: Manifest) -> dict[str, int]:
    """Bytes of an image's layers by digest, the lowest first.

    A layer that an image has twice is downloaded once.
    """
    return {each.digest: each.size for each in image.body.layers or ()}


# The size of an update: the layers of a new image that the image before it lacks.
#
# An engine that has one image downloads only the other layers of the next one: layers are named by
# the digest of their compressed bytes (OCI image specification, "Content Descriptors").

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
    moved away from an image that cannot be read, and the log says so.
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
