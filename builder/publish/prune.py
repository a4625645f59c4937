"""Old nightlies of a channel go; what anything else refers to stays.

The registry is asked for everything: which tags there are, what each leads to, what is attached to
that, and when it was made.  What goes is decided of that alone, in ``plan``.  It goes image by
image, and the image before what is attached to it: one that has to stay after all is whole.  What
belongs to an image is written down before that: when the image is gone, nothing leads to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from builder.errors import WorldError
from builder.publish.remote_image import CREATED
from builder.publish.survey import ATTACHED, Image, entries_of, is_nightly
from builder.publish.tag_history import Move, followed, way_back
from builder.tools.files import write_json
from builder.tools.log import Log
from builder.tools.registry.client import Repository
from builder.tools.registry.hub import Hub


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
    """The digests of all that stays and of what belongs to it, and the tags of the latter."""
    known: frozenset[str] = field(repr=False)
    """The same of all that tags lead to, whether it stays or not."""
    freed: int
    """Bytes of manifests, configurations and layers that nothing refers to afterwards, as far as
    the manifests were read."""

    @property
    def going(self) -> tuple[Image, ...]:
        """Those that go, the oldest first."""
        return tuple(fate.image for fate in reversed(self.fates) if not fate.why)


def _nightlies(tags: Collection[str], channel: str, names: Collection[str]) -> set[str]:
    like = {tag for tag in tags if is_nightly(tag, channel, ())}
    return {tag for tag in like if is_nightly(tag, channel, {*names, *tags} - like)}


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

    What ``rollback`` of any tag would go to is needed.  ``names`` are the channels and versions
    that are known to be in the repository.  ``signed``: what is signed goes, too.
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
    backs = ways_back(images)
    for image in candidates:
        own = _reason(image, nightly, keep, newest=newest, signed=signed)
        tag = backs.get(image.digest, "")
        why[image.digest] = own or (f"{tag} would be rolled back to it" if tag else "")
        if why[image.digest]:
            stays[image.digest] = image.tags[0]
    while more := _needed(images, stays):
        why |= {digest: f"{tag} refers to it" for digest, tag in more.items()}
        stays |= {image.digest: image.tags[0] for image in images if image.digest in more}
    fates = tuple(
        Fate(image, tuple(tag for tag in image.tags if tag in nightly), why[image.digest])
        for image in candidates
    )
    kept = frozenset(name for image in images if image.digest in stays for name in image.names)
    known = frozenset(name for image in images for name in image.names)
    return Plan(channel, fates, others, kept, known, _freed(images, stays))


def ways_back(images: Sequence[Image]) -> dict[str, str]:
    """The digests that tags would be rolled back to, each with such a tag."""
    by_digest = {image.digest: image for image in images}

    def notes_of(tag: str, digest: str) -> list[Move] | None:
        image = by_digest.get(digest)
        return [note for note in image.notes if note.tag == tag] if image else None

    found = {}
    for image in images:
        for tag in image.tags:
            known = list(followed(image.digest, partial(notes_of, tag)))
            found[way_back(known)] = tag
    return found


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
        if manifest is None:
            continue
        parsed = manifest.parsed()
        found[digest] = len(manifest.content)
        for part in [parsed.get("config"), *(parsed.get("layers") or [])]:
            if part:
                found[part["digest"]] = part.get("size", 0)
    return found


# What is done


@dataclass(frozen=True, slots=True)
class Begun:
    """An image that is being deleted, as it is kept on the disk until nothing is left of it."""

    tags: tuple[str, ...]
    manifests: tuple[str, ...]
    """Digests: its own, then those of what it lists, if it is an index."""
    attached: tuple[str, ...]
    """Digests."""
    attached_tags: tuple[str, ...]


def path_of(state_dir: Path, repository: Repository) -> Path:
    """Where is kept what is being deleted in a repository."""
    return state_dir / "prune" / f"{re.sub(r'[^a-z0-9._-]', '_', repository.name)}.json"


def _begun(file: Path) -> Begun | None:
    """What an earlier run had begun to delete; raises ``WorldError`` where it cannot be read."""
    try:
        told = json.loads(file.read_text("utf-8"))
        return Begun(**{name: tuple(map(str, each)) for name, each in told.items()})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise WorldError(
            "what an earlier run had begun to delete cannot be read",
            f"{file}: {error}",
            "delete it: then the rest of one image stays in the registry",
        ) from error


Stays = Callable[[Image], bool]
Take = Callable[[Begun, Collection[str]], None]


def _go(decided: Plan, file: Path, log: Log, stays: Stays, take: Take) -> tuple[str, ...]:
    """Take what goes, image by image; the tags that are gone.

    What a run that was stopped left of an image goes first, unless a tag still leads to the image:
    it is then as any other.
    """
    left = _begun(file)
    if left is not None:
        if decided.known.isdisjoint(left.manifests[:1]):
            take(replace(left, tags=()), decided.known)  # a tag of it may have moved to another
            log(f"deleted what was left of {', '.join(left.tags)}")
        file.unlink()
    standing = [*decided.going]
    gone: list[str] = []
    for image in decided.going:
        if stays(image):
            continue
        standing.remove(image)
        begun = Begun(
            image.tags, tuple(image.manifests), tuple(image.attached), image.attached_tags
        )
        write_json(file, asdict(begun))
        # What two have in common goes with the last: the other one may have to stay by then.
        take(begun, decided.kept.union(*(other.names for other in standing)))
        file.unlink()
        log(f"deleted {', '.join(image.tags)}")
        gone += image.tags
    return tuple(gone)


def delete(repository: Repository, decided: Plan, file: Path, log: Log) -> tuple[str, ...]:
    """Delete what goes, by digest; the tags that are gone.

    A registry takes every tag of a digest with it.  So right before each image all other tags are
    looked at again, the channel's last: an image that one of them leads to now stays, and so
    does what is part of an image that stays.  ``file`` is where is kept what is being deleted.
    Raises ``RegistryError`` where the registry allows no deletion, ``FetchError``; ``WorldError``
    where ``file`` cannot be read.
    """
    known = {tag for image in decided.going for tag in (*image.tags, *image.attached_tags)}

    def stays(image: Image) -> bool:
        others = [tag for tag in repository.tags() if tag not in known | {decided.channel}]
        named = [tag for tag in others if not ATTACHED.fullmatch(tag)]
        return _wanted(repository, image, [*named, decided.channel], decided, log)

    def take(begun: Begun, kept: Collection[str]) -> None:
        # An index first: a registry may refuse what one lists.
        for digest in (*begun.manifests, *begun.attached):
            if digest not in kept:
                repository.delete(digest)

    return _go(decided, file, log, stays, take)


def _wanted(
    repository: Repository, image: Image, tags: Sequence[str], decided: Plan, log: Log
) -> bool:
    """Whether a tag leads to something that would go, or an index lists it; a line says so."""
    going = image.manifests.keys() - decided.kept
    for tag in tags:
        digest = repository.head_digest(tag)
        led = {digest}
        if digest not in decided.kept and (found := repository.manifest(tag)):
            led |= {entry["digest"] for entry in entries_of(found)}
        if not led.isdisjoint(going):
            log(f"{', '.join(image.tags)} stays: {tag} leads to it now")
            return True
    return False


def delete_tags(
    repository: Repository, hub: Hub, decided: Plan, file: Path, log: Log
) -> tuple[str, ...]:
    """Delete what goes on Docker Hub, tag by tag: no other tag of an image goes with it.

    Docker Hub deletes no manifest for the asking: what is attached without a tag stays until it
    finds it unused.  An image keeps what is attached to it where the channel leads to it by the
    time that its tags are gone.  Raises like ``delete``.
    """

    def stays(image: Image) -> bool:
        return _wanted(repository, image, [decided.channel], decided, log)

    def take(begun: Begun, kept: Collection[str]) -> None:
        for tag in begun.tags:
            hub.delete_tag(repository.path, tag)
        for tag in begun.attached_tags:
            if repository.head_digest(decided.channel) in {*begun.manifests}.difference(kept):
                log(f"what is attached to {begun.manifests[0]} stays: it is {decided.channel}")
                return
            if tag not in kept:
                hub.delete_tag(repository.path, tag)

    return _go(decided, file, log, stays, take)
