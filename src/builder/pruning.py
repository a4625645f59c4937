"""Old nightlies of a channel go; what anything else refers to stays.

The registry is asked for everything: which tags there are, what each leads to, what is attached to
that, and when it was made.  What goes is decided of that alone, in ``plan``.  It goes image by
image, and the image before what is attached to it: one that has to stay after all is whole.  What
belongs to an image is written down before that: when the image is gone, nothing leads to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.errors import GoneError, WorldError
from builder.served import CREATED, configuration
from builder.tools.files import keep_json
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
# What clients have written for the type of an artifact where they had none: its configuration's.
NO_KIND = "application/vnd.oci."
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
    attached: Mapping[str, Manifest | None] = field(repr=False)
    """What refers to any of them (notes, bills of materials, signatures), by digest; what refers
    to one that is attached comes behind it.  None: it was not read."""
    attached_tags: tuple[str, ...]
    signed: bool

    @property
    def whole(self) -> dict[str, Manifest | None]:
        """Everything that goes with it, itself included."""
        return {**self.attached, **self.manifests}

    @property
    def names(self) -> tuple[str, ...]:
        """The digests of all that, and the tags of what is attached."""
        return (*self.whole, *self.attached_tags)


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


def survey(repository: Repository, channel: str, *, sparing: bool = False) -> list[Image]:
    """Everything that the tags of a repository lead to; the nightlies of a channel with their age.

    Tags of attachments are no images: they belong to what they are attached to.  ``sparing``: an
    attachment is read only where nothing else tells what it is, since Docker Hub counts each
    manifest that it gives as a pull.  Raises ``RegistryError``, ``FetchError``.
    """
    leads = {tag: found for tag in repository.tags() if (found := repository.told(tag))}
    by_digest: dict[str, list[str]] = {}
    by_subject: dict[str, dict[str, str]] = {}
    for tag, digest in leads.items():
        attached = ATTACHED.fullmatch(tag)
        if attached is not None:
            by_subject.setdefault(f"sha256:{attached[1]}", {})[tag] = digest
        else:
            by_digest.setdefault(digest, []).append(tag)
    found_images = []
    for digest, tags in by_digest.items():
        manifest = repository.manifest(digest)
        if manifest is not None:
            aged = any(is_nightly(tag, channel, ()) for tag in tags)
            created = _created(repository, manifest) if aged else None
            manifests = dict(_with_parts(repository, manifest))
            belongs = _attached(repository, manifests, by_subject, sparing=sparing)
            found_images.append(Image(digest, tuple(tags), created, manifests, *belongs))
    return found_images


def _attached(
    repository: Repository,
    manifests: Collection[str],
    by_subject: Mapping[str, Mapping[str, str]],
    *,
    sparing: bool,
) -> tuple[dict[str, Manifest | None], tuple[str, ...], bool]:
    """What is attached to an image, the tags of that, and whether any of it is a signature."""
    attached: dict[str, Manifest | None] = {}
    attached_tags: list[str] = []
    kinds: list[str] = []
    subjects = list(manifests)
    for subject in subjects:  # grows: what is attached may have something attached
        named = by_subject.get(subject, {})
        listed = repository.referrers(subject)
        found: dict[str, Manifest | None] = {}
        for tag, digest in named.items():
            # Where the registry lists referrers itself, nobody asks the list that a tag keeps.
            told = listed is not None or "." in tag
            found[digest] = None if sparing and told else repository.manifest(digest)
        kept = [entry for index in found.values() if index for entry in _entries(index)]
        for entry in [*(listed or []), *kept]:
            kind = str(entry.get("artifactType") or "")
            kinds.append(kind)
            if sparing and kind and not kind.startswith(NO_KIND):
                found[entry["digest"]] = None
            elif there := repository.manifest(entry["digest"]):
                found[there.digest] = there
        subjects += [digest for digest in found if digest not in {*attached, *manifests}]
        attached |= found
        attached_tags += named
    kinds += [kind for manifest in attached.values() if manifest for kind in _kinds(manifest)]
    return attached, tuple(attached_tags), _signed(attached_tags, kinds)


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
    except (AttributeError, TypeError, ValueError, GoneError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _kinds(manifest: Manifest) -> list[str]:
    """The types of an artifact, of its configuration and of its layers."""
    parsed = manifest.parsed()
    parts = [parsed.get("config") or {}, *(parsed.get("layers") or [])]
    return [parsed.get("artifactType") or "", *(part.get("mediaType") or "" for part in parts)]


def _signed(tags: Collection[str], kinds: Collection[str]) -> bool:
    """By the tags that cosign gives, or by the types of what is attached."""
    suffixes = {found[2] for tag in tags if (found := ATTACHED.fullmatch(tag))}
    return not suffixes.isdisjoint(SIGNED_SUFFIXES) or any(
        kind.startswith(SIGNATURES) for kind in kinds
    )


# What becomes of it


def plan(
    images: Sequence[Image],
    channel: str,
    keep: int,
    *,
    signed: bool = False,
    names: Collection[str] = (),
    back: str = "",
) -> Plan:
    """What becomes of the nightlies of a channel: the newest ``keep`` stay, and what is needed.

    ``names`` are the channels and versions that are known to be in the repository, ``back`` is the
    digest that the channel would be rolled back to.  ``signed``: what is signed goes, too.
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
        own = _reason(image, nightly, keep, newest=newest, signed=signed)
        way_back = f"{channel} would be rolled back to it" if image.digest == back else ""
        why[image.digest] = own or way_back
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


def _go(decided: Plan, file: Path, say: Say, stays: Stays, take: Take) -> tuple[str, ...]:
    """Take what goes, image by image; the tags that are gone.

    What a run that was stopped left of an image goes first, unless a tag still leads to the image:
    it is then as any other.
    """
    left = _begun(file)
    if left is not None:
        if decided.known.isdisjoint(left.manifests[:1]):
            take(replace(left, tags=()), decided.known)  # a tag of it may be another's by now
            say(f"deleted what was left of {', '.join(left.tags)}")
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
        keep_json(file, asdict(begun))
        # What two have in common goes with the last: the other one may have to stay by then.
        take(begun, decided.kept.union(*(other.names for other in standing)))
        file.unlink()
        say(f"deleted {', '.join(image.tags)}")
        gone += image.tags
    return tuple(gone)


def delete(repository: Repository, decided: Plan, file: Path, say: Say) -> tuple[str, ...]:
    """Delete what goes, by digest; the tags that are gone.

    A registry takes every tag of a digest with it.  So right before each image all other tags are
    looked at again, the channel's last: an image that one of them leads to by now stays, and so
    does what is part of an image that stays.  ``file`` is where is kept what is being deleted.
    Raises ``RegistryError`` where the registry allows no deletion, ``FetchError``; ``WorldError``
    where ``file`` cannot be read.
    """
    known = {tag for image in decided.going for tag in (*image.tags, *image.attached_tags)}

    def stays(image: Image) -> bool:
        others = [tag for tag in repository.tags() if tag not in known | {decided.channel}]
        named = [tag for tag in others if not ATTACHED.fullmatch(tag)]
        return _wanted(repository, image, [*named, decided.channel], decided, say)

    def take(begun: Begun, kept: Collection[str]) -> None:
        # An index first: a registry may refuse what one lists.
        for digest in (*begun.manifests, *begun.attached):
            if digest not in kept:
                repository.delete(digest)

    return _go(decided, file, say, stays, take)


def _wanted(
    repository: Repository, image: Image, tags: Sequence[str], decided: Plan, say: Say
) -> bool:
    """Whether a tag leads to something that would go, or an index lists it, by now; said aloud."""
    going = image.manifests.keys() - decided.kept
    for tag in tags:
        digest = repository.told(tag)
        led = {digest}
        if digest not in decided.kept and (found := repository.manifest(tag)):
            led |= {entry["digest"] for entry in _entries(found)}
        if not led.isdisjoint(going):
            say(f"{', '.join(image.tags)} stays: {tag} leads to it by now")
            return True
    return False


def delete_tags(
    repository: Repository, hub: Hub, decided: Plan, file: Path, say: Say
) -> tuple[str, ...]:
    """Delete what goes on Docker Hub, tag by tag: no other tag of an image goes with it.

    Docker Hub deletes no manifest for the asking: what is attached without a tag stays until it
    finds it unused.  An image keeps what is attached to it where the channel leads to it by the
    time that its tags are gone.  Raises like ``delete``.
    """

    def stays(image: Image) -> bool:
        return _wanted(repository, image, [decided.channel], decided, say)

    def take(begun: Begun, kept: Collection[str]) -> None:
        for tag in begun.tags:
            hub.delete_tag(repository.path, tag)
        for tag in begun.attached_tags:
            if repository.told(decided.channel) in {*begun.manifests}.difference(kept):
                say(f"what is attached to {begun.manifests[0]} stays: it is {decided.channel}")
                return
            if tag not in kept:
                hub.delete_tag(repository.path, tag)

    return _go(decided, file, say, stays, take)
