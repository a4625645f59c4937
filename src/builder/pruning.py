"""Old nightlies of a channel go; what anything else refers to stays.

The registry is asked for everything: which tags there are, what each leads to, what is attached to
that, and when it was made.  What goes is decided of that alone, in ``plan``; it goes image by
image, what is attached to one first, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from builder.errors import GoneError
from builder.served import CREATED, configuration
from builder.tools.hub import Hub
from builder.tools.registry import Manifest, Repository

KEY = r"[0-9a-f]{12}"
# What cosign and others name after the digest of an image, and the "Referrers Tag Schema" of the
# distribution specification, which has no suffix.
ATTACHED = re.compile(r"sha256-([0-9a-f]{64})(\.[a-z0-9]+)?")
SIGNED_SUFFIXES = frozenset({".sig", ".att"})
SIGNATURES = (
    "application/vnd.dev.cosign.",
    "application/vnd.dev.sigstore.",
    "application/vnd.cncf.notary.",
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Image:
    """What tags of one digest lead to, with all that belongs to it."""

    digest: str
    tags: tuple[str, ...]
    created: datetime | None
    """As its label says; None where it does not."""
    manifests: Mapping[str, Manifest] = field(repr=False)
    """Its own and, of an index, those that it lists, by digest."""
    attached: Mapping[str, Manifest] = field(repr=False)
    """What refers to any of them (notes, bills of materials, signatures), by digest; what refers
    to one that is attached comes behind it."""
    attached_tags: tuple[str, ...]
    signed: bool

    @property
    def whole(self) -> dict[str, Manifest]:
        """Everything that goes with it, itself included."""
        return {**self.attached, **self.manifests}


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of an image with nightly tags."""

    image: Image
    tags: tuple[str, ...]
    """The nightly ones."""
    why: str
    """Why it stays; empty: it goes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the nightlies of a channel, newest first."""

    channel: str
    fates: tuple[Fate, ...]
    others: tuple[str, ...]
    """Tags that are no nightlies of this channel."""
    kept: frozenset[str] = field(repr=False)
    """The digests of all that stays, and of what belongs to it."""
    freed: int
    """Bytes of manifests, configurations and layers that nothing refers to afterwards."""

    @property
    def going(self) -> tuple[Image, ...]:
        """Those that go, the oldest first."""
        return tuple(fate.image for fate in reversed(self.fates) if not fate.why)


def is_nightly(tag: str, channel: str, names: Collection[str]) -> bool:
    """Whether a tag is ``CHANNEL-WHAT-KEY12``, and not one of a longer name's.

    ``names`` are channels, versions and other tags: ``nightly-main-3f2a91c0d-0123456789ab`` is
    the channel ``nightly``'s, unless there is a ``nightly-main``.
    """
    if re.fullmatch(rf"{re.escape(channel)}-[A-Za-z0-9._-]+-{KEY}", tag) is None:
        return False
    return not any(name.startswith(f"{channel}-") and tag.startswith(f"{name}-") for name in names)


def _nightlies(tags: Collection[str], channel: str, names: Collection[str]) -> set[str]:
    like = {tag for tag in tags if is_nightly(tag, channel, ())}
    return {tag for tag in like if is_nightly(tag, channel, {*names, *tags} - like)}


# What is there


def survey(repository: Repository, channel: str) -> list[Image]:
    """Everything that the tags of a repository lead to; the nightlies of a channel with their age.

    Tags of attachments are no images: they belong to what they are attached to.  Raises
    ``RegistryError``, ``FetchError``.
    """
    leads = {tag: found for tag in repository.tags() if (found := repository.manifest(tag))}
    by_digest: dict[str, list[str]] = {}
    by_subject: dict[str, list[str]] = {}
    for tag, found in leads.items():
        attached = ATTACHED.fullmatch(tag)
        if attached is not None:
            by_subject.setdefault(f"sha256:{attached[1]}", []).append(tag)
        else:
            by_digest.setdefault(found.digest, []).append(tag)
    found_images = []
    for tags in by_digest.values():
        aged = any(is_nightly(tag, channel, ()) for tag in tags)
        manifest = leads[tags[0]]
        created = _created(repository, manifest) if aged else None
        found_images.append(_image(repository, tuple(tags), created, leads, by_subject))
    return found_images


def _image(
    repository: Repository,
    tags: tuple[str, ...],
    created: datetime | None,
    leads: Mapping[str, Manifest],
    by_subject: Mapping[str, Sequence[str]],
) -> Image:
    manifest = leads[tags[0]]
    manifests = dict(_with_parts(repository, manifest))
    attached: dict[str, Manifest] = {}
    attached_tags: list[str] = []
    subjects = list(manifests)
    for subject in subjects:  # grows: what is attached may have something attached
        named = by_subject.get(subject, [])
        attached_tags += named
        found = {leads[tag].digest: leads[tag] for tag in named}
        listed = [entry for index in found.values() for entry in _entries(index)]
        for entry in [*(repository.referrers(subject) or []), *listed]:
            there = repository.manifest(entry["digest"])
            found |= {there.digest: there} if there else {}
        subjects += [digest for digest in found if digest not in {*attached, *manifests}]
        attached |= found
    return Image(
        manifest.digest,
        tags,
        created,
        manifests,
        attached,
        tuple(attached_tags),
        _signed(attached.values(), attached_tags),
    )


def _with_parts(repository: Repository, manifest: Manifest) -> Iterator[tuple[str, Manifest]]:
    """A manifest and, of an index, what it lists and the registry has."""
    yield manifest.digest, manifest
    for entry in _entries(manifest):
        part = repository.manifest(entry["digest"])
        if part is not None:
            yield from _with_parts(repository, part)


def _entries(manifest: Manifest) -> list[dict[str, Any]]:
    return list(manifest.parsed().get("manifests") or [])


def _created(repository: Repository, manifest: Manifest) -> datetime | None:
    """The age of an image by its label; None where it has none, or is no image."""
    try:
        config: Any = configuration(repository, manifest)
        labels = (config.get("config") or {}).get("Labels") or {}
        found = datetime.fromisoformat(labels.get(CREATED, ""))
    except (ValueError, GoneError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _signed(attached: Collection[Manifest], tags: Collection[str]) -> bool:
    """By the tags that cosign gives, or by the types of artifact, configuration and layers."""
    suffixes = {found[2] for tag in tags if (found := ATTACHED.fullmatch(tag))}
    if not suffixes.isdisjoint(SIGNED_SUFFIXES):
        return True
    for manifest in attached:
        parsed = manifest.parsed()
        parts = [parsed.get("config") or {}, *(parsed.get("layers") or [])]
        types = [parsed.get("artifactType"), *(part.get("mediaType") for part in parts)]
        if any((kind or "").startswith(SIGNATURES) for kind in types):
            return True
    return False


# What becomes of it


def plan(
    images: Sequence[Image],
    channel: str,
    keep: int,
    *,
    signed: bool = False,
    names: Collection[str] = (),
) -> Plan:
    """What becomes of the nightlies of a channel: the newest ``keep`` stay, and what is needed.

    ``names`` are the channels and versions that are known to be in the repository.  ``signed``:
    what is signed goes, too.
    """
    tags = [tag for image in images for tag in image.tags]
    nightly = _nightlies(tags, channel, names)
    others = tuple(tag for tag in tags if tag not in nightly)
    candidates = sorted(
        (image for image in images if not nightly.isdisjoint(image.tags)), key=_age, reverse=True
    )
    aged = [image for image in candidates if image.created is not None]
    newest = {image.digest for image in aged[:keep]}
    stays = {image.digest: image.tags[0] for image in images if nightly.isdisjoint(image.tags)}
    why: dict[str, str] = {}
    for image in candidates:
        why[image.digest] = _reason(image, nightly, keep, newest=newest, signed=signed)
        if why[image.digest]:
            stays[image.digest] = image.tags[0]
    while more := _needed(images, stays):
        why |= {digest: f"{tag} refers to it" for digest, tag in more.items()}
        stays |= {image.digest: image.tags[0] for image in images if image.digest in more}
    fates = tuple(
        Fate(image, tuple(tag for tag in image.tags if tag in nightly), why[image.digest])
        for image in candidates
    )
    kept = [digest for image in images if image.digest in stays for digest in image.whole]
    return Plan(channel, fates, others, frozenset(kept), _freed(images, stays))


def _age(image: Image) -> tuple[bool, datetime, str]:
    """The order of images, the oldest first; what does not tell its age stands last."""
    return image.created is None, image.created or datetime.min.replace(tzinfo=UTC), image.tags[0]


def _reason(
    image: Image, nightly: Collection[str], keep: int, *, newest: Collection[str], signed: bool
) -> str:
    """Why an image stays for its own sake; empty where it does not."""
    also = [tag for tag in image.tags if tag not in nightly]
    if also:
        return f"it is {', '.join(also)}"
    if image.created is None:
        return f"its label {CREATED} does not tell its age"
    if image.digest in newest:
        return f"one of the last {keep}"
    return "it is signed" if image.signed and not signed else ""


def _needed(images: Sequence[Image], stays: Mapping[str, str]) -> dict[str, str]:
    """Images that are part of what stays, or its subject, and are not known to stay; and whose."""
    referred: dict[str, str] = {}
    for image in images:
        if image.digest in stays:
            digests = {*image.whole}
            for manifest in image.manifests.values():
                digests.add((manifest.parsed().get("subject") or {}).get("digest", ""))
            referred |= dict.fromkeys(digests, image.tags[0])
    known = {image.digest for image in images} - stays.keys()
    return {digest: tag for digest, tag in referred.items() if digest in known}


def _freed(images: Sequence[Image], stays: Collection[str]) -> int:
    going: dict[str, int] = {}
    staying: set[str] = set()
    for image in images:
        if image.digest in stays:
            staying |= _sizes(image).keys()
        else:
            going |= _sizes(image)
    return sum(size for digest, size in going.items() if digest not in staying)


def _sizes(image: Image) -> dict[str, int]:
    """Bytes of all that belongs to an image, by digest."""
    found: dict[str, int] = {}
    for digest, manifest in image.whole.items():
        parsed = manifest.parsed()
        found[digest] = len(manifest.content)
        for part in [parsed.get("config"), *(parsed.get("layers") or [])]:
            if part:
                found[part["digest"]] = part.get("size", 0)
    return found


# What is done


def delete(repository: Repository, decided: Plan, say: Say) -> tuple[str, ...]:
    """Delete what goes, by digest; the tags that are gone.

    A registry takes every tag of a digest with it.  So before each image all other tags are looked
    at again, and the channel's once more before the image itself: an image that one of them leads
    to by now stays, and so does what is part of an image that stays.  Raises ``RegistryError``
    where the registry allows no deletion, ``FetchError``.
    """
    known = {tag for image in decided.going for tag in (*image.tags, *image.attached_tags)}
    gone: list[str] = []
    for image in decided.going:
        others = [tag for tag in repository.tags() if tag not in known]
        named = [tag for tag in others if not ATTACHED.fullmatch(tag)]
        if _wanted(repository, image, [decided.channel, *named], decided, say):
            continue
        for digest in reversed([*image.attached]):
            _delete(repository, digest, decided)
        if _wanted(repository, image, [decided.channel], decided, say):
            continue
        for digest in image.manifests:  # an index first: a registry may refuse what one lists
            _delete(repository, digest, decided)
        say(f"deleted {', '.join(image.tags)}")
        gone += image.tags
    return tuple(gone)


def _delete(repository: Repository, digest: str, decided: Plan) -> None:
    if digest not in decided.kept:
        repository.delete(digest)


def _wanted(
    repository: Repository, image: Image, tags: Sequence[str], decided: Plan, say: Say
) -> bool:
    """Whether a tag leads to something that would go, or an index lists it, by now; said aloud."""
    going = image.manifests.keys() - decided.kept
    for tag in dict.fromkeys(tags):
        found = repository.manifest(tag)
        if found is None:
            continue
        led = {found.digest, *(entry["digest"] for entry in _entries(found))}
        if not led.isdisjoint(going):
            say(f"{', '.join(image.tags)} stays: {tag} leads to it by now")
            return True
    return False


def delete_tags(repository: Repository, hub: Hub, decided: Plan, say: Say) -> tuple[str, ...]:
    """Delete what goes on Docker Hub, tag by tag: no other tag of an image goes with it.

    Docker Hub deletes no manifest for the asking: what is attached without a tag stays until it
    finds it unused.  Raises ``RegistryError``, ``FetchError``.
    """
    gone: list[str] = []
    for image in decided.going:
        if _wanted(repository, image, [decided.channel], decided, say):
            continue
        for tag in (*image.attached_tags, *image.tags):
            hub.delete_tag(repository.path, tag)
        say(f"deleted {', '.join(image.tags)}")
        gone += image.tags
    return tuple(gone)
