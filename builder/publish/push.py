"""Pushes a verified image: everything is uploaded before the first tag is given.

The image is uploaded under its digest, then its attachments (bills of materials, a signature), then
it gets its immutable tag (``VERSION-KEY12``), which is compared with the image that was checked.
Every other tag is given by digest, without a second upload.  Only tags that are declared as moving
are taken from another image.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import RegistryError
from builder.publish.push_tags import push_tags
from builder.publish.referrers import Attachment, attach_all, referrers
from builder.publish.remote_image import PlatformImage, configuration, platform_of
from builder.publish.tags import Tags
from builder.publish.update_size import Update
from builder.publish.upload import LocalImage, local_image, upload
from builder.publish.verdicts import VERDICT, Trust, attached_verdicts, statement_of
from builder.publish.verified import Verified
from builder.records.record import Record
from builder.tools.log import Log
from builder.tools.registry import cosign
from builder.tools.registry.client import Manifest, Repository

Attachments = Callable[[Collection[str]], Sequence[Attachment]]
"""Makes the attachments of an image, except types that it has already."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """The outcome of a push."""

    repository: str
    digest: str
    tags: tuple[str, ...]
    uploaded: int
    """The number of blobs that the registry lacked."""
    replaced: dict[str, str]
    """The digests that immutable and version tags pointed to before, by tag."""
    updates: tuple[Update, ...] = ()
    """One for each image that other tags pointed to before, and each platform of an index."""
    platforms: dict[str, str] = field(default_factory=dict)
    """The digests of an index's images by platform."""


@dataclass(frozen=True, slots=True)
class Pushing:
    """How an image is pushed."""

    work: Path
    """An empty directory for the saved image."""
    log: Log
    trust: Trust
    """The key that signs the image and its verdict; an empty one: they are not signed."""
    attachments: Attachments
    """For the image that is pushed, or for the engine's where a trusted verdict is attached."""
    replace: str | None = None
    """The reason to take an immutable or a version tag from another image."""
    found: Verified | None = None
    """The registry's verified image of this key; None: it has none."""
    known: frozenset[str] = frozenset()
    """The tags of the repository."""
    budget: int | None = None
    """Megabytes that an update may have; None: any number."""
    over_budget: str | None = None
    """The reason why an update may exceed its budget."""
    local: LocalImage | None = None
    """The image of the engine, where it has been read."""
    dropped: tuple[str, ...] = ()
    """Platforms that tags may lose."""


def push(repository: Repository, record: Record, tags: Tags, how: Pushing) -> Pushed:
    """Push the image of a record, then give it its tags.

    Where the registry has a verified image of this key, that image gets the tags instead.

    Raises ``RegistryError`` where an immutable or a version tag is taken and there is no reason to
    replace it, an update exceeds its budget without a reason, a tag would lose a platform, or the
    registry refuses;
    ``TagMovedError`` where another machine moves one of the tags at the same time; ``FetchError``
    when the registry does not answer; ``WorldError`` where the image cannot be signed, or this
    machine's clock is wrong.
    """
    digest = how.found.digest if how.found else record.digest
    there = digest if how.found else ""
    order = push_tags(repository, record.recipe, tags, digest, how.known, there)
    order.require_free(how.replace)
    if digest != record.digest:
        how.log(f"the registry has {tags.immutable} already: {digest} gets the tags")
    image = _PushedImage(repository, digest)
    local = None
    # An interrupted push may have left the image without a tag.
    if not (how.found or (how.known and image.is_there())):
        local = how.local or local_image(record, how.work)
        image.manifest = local.manifest
    updates: dict[str, tuple[Update, ...]] = {}
    if order.followed:
        budget = how.budget if how.over_budget is None else None
        updates = order.updates([_platform_image(image, local)], budget, how.log, how.dropped)
    uploaded = upload(repository, local, new=not how.known) if local else 0
    reason = how.replace or how.over_budget or f"push of {record.recipe} {record.key[:12]}"
    new = local is not None
    entries = [] if new else referrers(repository, digest, how.known)
    planned = order.plan(entries, reason, updates, how.trust)
    notes = [each.note.attachment for each in planned.values()]
    _complete(repository, record, image, how, entries, notes, new=new)
    given = order.give(image.read, planned, how.trust)
    compared = tuple(each for found in updates.values() for each in found)
    return Pushed(repository.name, digest, given, uploaded, order.replaced, compared)


def _platform_image(image: _PushedImage, local: LocalImage | None) -> PlatformImage:
    """The image with its configuration; ``local`` if it is not in the registry yet."""
    manifest = image.read()
    config = local.config() if local else configuration(image.repository, manifest)
    return PlatformImage(platform_of(config), manifest, config)


@dataclass(slots=True)
class _PushedImage:
    """An image of a registry; its manifest is fetched when it is needed, for that is a pull."""

    repository: Repository
    digest: str
    manifest: Manifest | None = None

    def is_there(self) -> bool:
        """Whether the registry has it."""
        self.manifest = self.manifest or self.repository.manifest(self.digest)
        return self.manifest is not None

    def read(self) -> Manifest:
        """Its manifest; raises ``RegistryError`` where it is gone."""
        if not self.is_there() or self.manifest is None:
            raise RegistryError(
                f"{self.repository.name} no longer has {self.digest}", hint="push again"
            )
        return self.manifest


def _complete(
    repository: Repository,
    record: Record,
    image: _PushedImage,
    how: Pushing,
    entries: Sequence[Mapping[str, Any]],
    notes: Sequence[Attachment],
    *,
    new: bool,
) -> None:
    """Attach missing documents and the notes of moves, and sign, before the image gets a tag.

    Earlier attachments stay: they describe the same image, also where the recipe's words changed.
    ``entries`` are the image's referrers.
    """
    missing: list[Attachment] = []
    own = how.found.record if how.found else record  # None: a trusted verdict is attached
    if own is not None or image.digest == record.digest:
        missing += how.attachments(_kinds(entries))
    if own is None:
        sign(repository, image.digest, how.trust, how.log)
    else:
        missing += _vouched(repository, own, entries, how.trust, how.log)
    missing += notes
    if missing:
        # Newer versions of cosign list a signature there as well; and in a repository in use,
        # another machine may have pushed the same image during the upload, and moved tags to it.
        unlisted = new and not (how.trust.signing or how.known)
        attach_all(repository, image.read(), missing, new=new, unlisted=unlisted)


def _kinds(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    return {str(each.get("artifactType")) for each in entries}


def _vouched(
    repository: Repository,
    record: Record,
    entries: Sequence[Mapping[str, Any]],
    trust: Trust,
    log: Log,
) -> list[Attachment]:
    """The verdict on an image, unless it is attached; the image itself is signed first."""
    verdicts = attached_verdicts(entries, record.digest, record.key, record.contract)
    if any(map(trust.is_signed_by_us, verdicts)):
        return []
    sign(repository, record.digest, trust, log)
    return [Attachment(VERDICT, annotations=trust.annotations(statement_of(record)))]


def sign(repository: Repository, digest: str, trust: Trust, log: Log) -> None:
    """Sign an image or an index with this run's key, if there is one and it is not signed.

    Raises ``RegistryError``, ``WorldError``.
    """
    if trust.signing and cosign.sign(repository.name, digest, trust.signing, trust.work):
        log(f"signed {repository.name}@{digest[:19]}")
