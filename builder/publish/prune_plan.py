"""Decides which old nightlies of a channel are deleted: images that nothing refers to.

The decision depends on nothing but the contents of the repository: its tags, their images, the
attachments and their age.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from builder.engines.layout import CREATED
from builder.publish.survey import SurveyedImage, is_nightly
from builder.publish.tag_history import Note, rollback_targets, trace_moves


@dataclass(frozen=True, slots=True)
class NightlyImage:
    """An image with nightly tags."""

    image: SurveyedImage
    tags: tuple[str, ...]
    """The nightly ones."""
    kept_because: str
    """Why it stays; empty: it is deleted."""


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Which nightlies of a channel are deleted, and which stay; newest first."""

    channel: str
    candidates: tuple[NightlyImage, ...]
    others: tuple[str, ...]
    """Tags that are no nightlies of this channel."""
    kept: frozenset[str] = field(repr=False)
    """Digests of manifests that stay, and tags of attachments that stay."""
    freed_bytes: int
    """Size of the manifests, configurations and layers that nothing refers to afterwards; blobs of
    manifests that were not read are not known."""

    @property
    def deletions(self) -> tuple[SurveyedImage, ...]:
        """The images to delete, the oldest first; indexes before the images that they list."""
        found = [each.image for each in reversed(self.candidates) if not each.kept_because]
        return tuple(sorted(found, key=lambda image: len(image.manifests) == 1))


def plan(
    images: Sequence[SurveyedImage],
    channel: str,
    keep: int,
    *,
    signed: bool = False,
    names: Collection[str] = (),
) -> PrunePlan:
    """Decide about the nightlies of a channel: the newest ``keep`` stay, and the nightlies in use.

    An index and the images that it lists are one nightly: they stay or go with it.  An image is in
    use where another tag or manifest refers to it, or one of ``keep`` rollbacks of a tag, one after
    the other, would go to it.
    ``names`` are the channels and versions that are known to be in the repository.
    ``signed``: signed images are deleted, too.
    """
    tags = [tag for image in images for tag in image.tags]
    like = {tag for tag in tags if is_nightly(tag, channel, ())}
    nightly = {tag for tag in like if is_nightly(tag, channel, {*names, *tags} - like)}
    candidates = sorted(
        (image for image in images if not nightly.isdisjoint(image.tags)), key=_age, reverse=True
    )
    listed = {
        digest for image in candidates for digest in image.manifests if digest != image.digest
    }
    aged = [each for each in candidates if each.created is not None and each.digest not in listed]
    newest = {image.digest for image in aged[:keep]}
    targets = targets_of(images, keep)
    reasons = {}
    for image in candidates:
        also = [tag for tag in image.tags if tag not in nightly]
        reason = ""
        if also:
            reason = f"it is tagged {', '.join(also)}"
        elif image.created is None and image.digest not in listed:
            reason = f"its age is not known: no label {CREATED}"
        elif image.digest in newest:
            reason = f"one of the newest {keep}"
        elif image.signed and not signed:
            reason = "it is signed"
        elif image.digest in targets:
            reason = f"{targets[image.digest]} would be rolled back to it"
        reasons[image.digest] = reason
    # With each image that stays, so does whatever it refers to, and so on.
    stays = {image.digest for image in images if reasons.get(image.digest, "no nightly")}
    while more := _needed(images, stays):
        reasons |= {digest: f"{tag} refers to it" for digest, tag in more.items()}
        stays |= more.keys()
    found = tuple(
        NightlyImage(
            image, tuple(tag for tag in image.tags if tag in nightly), reasons[image.digest]
        )
        for image in candidates
    )
    kept = frozenset(name for image in images if image.digest in stays for name in image.names)
    others = tuple(tag for tag in tags if tag not in nightly)
    return PrunePlan(channel, found, others, kept, _freed(images, stays))


def targets_of(images: Sequence[SurveyedImage], steps: int) -> dict[str, str]:
    """The digests that tags would be rolled back to in so many steps, each with one such tag."""
    by_digest = {image.digest: image for image in images}

    def notes_of(tag: str, digest: str) -> list[Note]:
        image = by_digest.get(digest)
        # The notes of an index's images are among its own.
        return [
            each
            for each in (image.notes if image else ())
            if (each.move.tag, each.move.digest) == (tag, digest)
        ]

    found: dict[str, str] = {}
    for image in images:
        for tag in image.tags:
            known = list(trace_moves(image.digest, partial(notes_of, tag)))
            found |= dict.fromkeys(rollback_targets(known)[:steps], tag)
    return found


def _age(image: SurveyedImage) -> tuple[bool, datetime, str]:
    """The order of images, the oldest first; an image without a date is last."""
    return image.created is None, image.created or datetime.min.replace(tzinfo=UTC), image.tags[0]


def _needed(images: Sequence[SurveyedImage], stays: Collection[str]) -> dict[str, str]:
    """Images that something that stays refers to, and that are not known to stay yet.

    Each with a tag of the image that refers to it.
    """
    referred: dict[str, str] = {}
    for image in images:
        if image.digest in stays:
            digests = {*image.everything}
            for manifest in image.manifests.values():
                digests.add((manifest.parsed().get("subject") or {}).get("digest", ""))
            referred |= dict.fromkeys(digests, image.tags[0])
    known = {image.digest for image in images}.difference(stays)
    return {digest: tag for digest, tag in referred.items() if digest in known}


def _freed(images: Sequence[SurveyedImage], stays: Collection[str]) -> int:
    deleted: dict[str, int] = {}
    staying: set[str] = set()
    for image in images:
        if image.digest in stays:
            staying |= _sizes(image).keys()
        else:
            deleted |= _sizes(image)
    return sum(size for digest, size in deleted.items() if digest not in staying)


def _sizes(image: SurveyedImage) -> dict[str, int]:
    """Sizes of an image, its parts and its attachments in bytes, by digest."""
    found: dict[str, int] = {}
    for digest, manifest in image.everything.items():
        if manifest is None:
            continue
        parsed = manifest.parsed()
        found[digest] = len(manifest.content)
        for part in [parsed.get("config"), *(parsed.get("layers") or [])]:
            if part:
                found[part["digest"]] = part.get("size", 0)
    return found
