"""Deletes old nightlies of a channel, as ``plan_prune`` decides.

The attachments of an image are deleted before the image itself: a run that was interrupted leaves
an image that the next run finds again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from builder.core.errors import GoneError, RegistryError
from builder.core.files import named_lock, workspace
from builder.core.log import Log
from builder.core.settings import Settings
from builder.docker.engine import HUB
from builder.engines.layout import CREATED
from builder.publish.hub import Hub
from builder.publish.registry import Manifest, Repository, configuration
from builder.publish.tags import NIGHTLY, TAGS, Note, notes_in, rollback_targets, trace_moves
from builder.publish.verdicts import Trust, built_at, entries_of, referrers_tag, trust_of
from builder.recipes.schema import Recipe

# The contents of a repository: its images, their age, and their attachments.

KEY = r"[0-9a-f]{12}"
DEEPEST = 4  # indexes within each other
# Tags named after the digest of an image: cosign's and others have a suffix, and the one of the
# distribution specification's "Referrers Tag Schema" has none.
ATTACHED = re.compile(r"sha256-([0-9a-f]{64})(\.[a-z0-9]+)?")
SIGNED_SUFFIXES = (".sig", ".att")
SIGNATURES = (
    "application/vnd.dev.cosign.",
    "application/vnd.dev.sigstore.",
    "application/vnd.cncf.notary.",
)
# Clients without a type for an artifact write the type of its configuration.
NO_KIND = "application/vnd.oci."

Descriptors = list[dict[str, Any]]
"""OCI image specification 1.1, "Content Descriptors"."""


@dataclass(frozen=True, slots=True)
class SurveyedImage:
    """An image, or another manifest, with its tags and its attachments."""

    digest: str
    tags: tuple[str, ...]
    created: datetime | None
    """When it was first built, by a verdict that is attached to it, else by its label, which is the
    time of its newest input; None where it has neither."""
    manifests: Mapping[str, Manifest] = field(repr=False)
    """Its own and, of an index, the manifests that it lists, by digest."""
    attached: Mapping[str, Manifest | None] = field(repr=False)
    """Their referrers (notes, bills of materials, signatures), by digest, each followed by
    its own referrers.  None: the manifest was not read."""
    attached_tags: tuple[str, ...]
    signed: bool
    notes: tuple[Note, ...] = field(default=(), repr=False)
    """The notes of moves to it that count, also of interrupted ones."""

    @property
    def everything(self) -> dict[str, Manifest | None]:
        """Its manifests and its attachments."""
        return {**self.attached, **self.manifests}

    @property
    def names(self) -> tuple[str, ...]:
        """The digests of all that, and the tags of its attachments."""
        return (*self.everything, *self.attached_tags)


def is_nightly(tag: str, channel: str, names: Collection[str]) -> bool:
    """Whether a tag is ``CHANNEL-WHAT-KEY12``, and does not belong to a longer name.

    ``names`` are channels, versions and other tags: ``nightly-main-3f2a91c0d-0123456789ab`` belongs
    to the channel ``nightly``, unless there is a ``nightly-main``.
    """
    if re.fullmatch(rf"{re.escape(channel)}-[A-Za-z0-9._-]+-{KEY}", tag) is None:
        return False
    return not any(name.startswith(f"{channel}-") and tag.startswith(f"{name}-") for name in names)


def images_among(tags: Collection[str]) -> list[str]:
    """The tags that name images: no attachments, and no nightly runs of another tag."""
    runs = {f"{tag}.nights" for tag in tags}
    return [tag for tag in tags if tag not in runs and not ATTACHED.fullmatch(tag)]


def survey(repository: Repository, channel: str, trust: Trust) -> list[SurveyedImage]:
    """All images of a repository that have a tag; the nightlies of a channel with their age.

    A tag of an attachment is no image: it belongs to the image that it is attached to.  Docker Hub
    counts each manifest that is fetched as a pull, so few are: an attachment is read only where its
    descriptor does not name its type.
    """
    tags = repository.tags()
    by_subject: dict[str, list[str]] = {}
    for tag in tags:
        if attached := ATTACHED.fullmatch(tag):
            by_subject.setdefault(f"sha256:{attached[1]}", []).append(tag)
    tagged: dict[str, list[str]] = {}
    for tag in images_among(tags):
        if digest := repository.head_digest(tag):  # it may have been deleted meanwhile
            tagged.setdefault(digest, []).append(tag)
    known = {digest: there for digest in tagged if (there := repository.manifest(digest))}
    reader = _AttachmentReader(repository, by_subject)
    images = []
    for digest, manifest in known.items():
        named = tagged[digest]
        manifests = _with_parts(repository, manifest, named[0], known)
        found, entries = reader.attached(manifests)
        built = [built_at(listed, subject) for subject, listed in entries.items()]
        created = None
        if any(is_nightly(tag, channel, ()) for tag in named):
            labels = (_created(repository, each) for each in manifests.values())
            # Labels are fetched only where there is no verdict: each may be a pull.
            created = min(filter(None, built), default=None)
            created = created or min(filter(None, labels), default=None)
        attached_tags = [tag for subject in entries for tag in by_subject.get(subject, ())]
        kinds = [str(each.get("artifactType")) for listed in entries.values() for each in listed]
        kinds += [kind for each in found.values() if each is not None for kind in _kinds(each)]
        path, listings = repository.path, entries.items()
        notes = [note for of, listed in listings for note in notes_in(listed, of, path, trust)]
        images.append(
            SurveyedImage(
                digest,
                tuple(named),
                created,
                manifests,
                found,
                tuple(attached_tags),
                any(tag.endswith(SIGNED_SUFFIXES) for tag in attached_tags)
                or any(kind.startswith(SIGNATURES) for kind in kinds),
                tuple(notes),
            )
        )
    return images


@dataclass(slots=True)
class _AttachmentReader:
    """Finds the attachments of images; ``by_subject`` are the tags named after their digests."""

    repository: Repository
    by_subject: Mapping[str, Sequence[str]]
    lists: bool | None = None
    """Whether the registry has the referrers API; None: not known yet."""
    unlisted: str = ""
    """A manifest whose referrers neither the registry nor a tag lists."""
    known: dict[str, tuple[dict[str, Manifest | None], Descriptors]] = field(default_factory=dict)
    """Attachments by digest of the image: images of an index have tags of their own."""

    def attached(
        self, manifests: Collection[str]
    ) -> tuple[dict[str, Manifest | None], dict[str, Descriptors]]:
        """The attachments of an image and its parts, and the descriptors that list them, by the
        digest of what they are attached to."""
        attached: dict[str, Manifest | None] = {}
        entries: dict[str, Descriptors] = {}
        subjects = list(manifests)
        for subject in subjects:  # grows: an attachment may have attachments
            if subject not in self.known:
                self.known[subject] = self._read(subject)
            found, entries[subject] = self.known[subject]
            subjects += [digest for digest in found if digest not in {*attached, *manifests}]
            attached |= found
        return attached, entries

    def _read(self, subject: str) -> tuple[dict[str, Manifest | None], Descriptors]:
        entries = list(self._listed(subject) or ())
        found: dict[str, Manifest | None] = {}
        for tag in self.by_subject.get(subject, ()):
            if "." in tag:
                found[self.repository.head_digest(tag)] = None
                continue
            there = self.repository.manifest(tag)
            if there and there.digest != subject:  # GitLab answers with the image itself
                found[there.digest] = there
                listed = {each["digest"] for each in entries}
                entries += [each for each in entries_of(there) if each["digest"] not in listed]
        for entry in entries:
            kind = str(entry.get("artifactType") or "")
            if kind and not kind.startswith(NO_KIND):
                found[entry["digest"]] = None
            elif there := self.repository.manifest(entry["digest"]):
                found[there.digest] = there
        found.pop("", None)
        return found, entries

    def _listed(self, subject: str) -> Descriptors | None:
        """The referrers of a manifest by the API; None where the registry does not have the API.

        A registry may fail to answer for one manifest, whose referrers would then be missed.  So
        the API is taken for absent only where a tag keeps a list instead, and a registry that
        answers for one manifest has to answer for all.
        """
        if self.lists is False:
            return None
        listed = self.repository.referrers(subject)
        if listed is not None:
            self.lists = True
        elif not self.lists and referrers_tag(subject) in self.by_subject.get(subject, ()):
            self.lists = False
        else:
            self.unlisted = subject
        if self.lists and self.unlisted:
            raise RegistryError(
                f"{self.repository.name} does not list the referrers of {self.unlisted}",
                "it lists the referrers of other images, so this answer is wrong",
                "nothing was deleted; try again",
            )
        return listed


def _with_parts(
    repository: Repository, manifest: Manifest, tag: str, known: Mapping[str, Manifest]
) -> dict[str, Manifest]:
    """A manifest and, of an index, the manifests that it lists and the registry has, by digest.

    ``known`` manifests are not fetched again.
    """
    found = {manifest.digest: manifest}
    level = [manifest]
    for _ in range(DEEPEST):
        named = dict.fromkeys(each["digest"] for within in level for each in entries_of(within))
        new = [digest for digest in named if digest not in found]
        parts = [known.get(digest) or repository.manifest(digest) for digest in new]
        level = [part for part in parts if part is not None]
        if not level:
            return found
        found |= {part.digest: part for part in level}
    raise RegistryError(
        f"{repository.name}:{tag} lists nested indexes",
        f"they are more than {DEEPEST} deep",
        "nothing was deleted; delete that tag, or push it again",
    )


def _created(repository: Repository, manifest: Manifest) -> datetime | None:
    """When an image was created, by its label; None where it has none, or is no image."""
    try:
        found = datetime.fromisoformat(configuration(repository, manifest).labels.get(CREATED, ""))
    except (ValueError, GoneError, RegistryError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _kinds(manifest: Manifest) -> list[str]:
    body = manifest.body
    parts = (body.config, *(body.layers or ()))
    return [body.artifactType or "", *(part.mediaType for part in parts if part)]


# Decides which old nightlies of a channel are deleted: images that nothing refers to.
#
# The decision depends on nothing but the contents of the repository: its tags, their images, the
# attachments and their age.


class NightlyImage(NamedTuple):
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


def plan_prune(
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
        NightlyImage(image, tuple(filter(nightly.__contains__, image.tags)), reasons[image.digest])
        for image in candidates
    )
    kept = frozenset(name for image in images if image.digest in stays for name in image.names)
    others = tuple(tag for tag in tags if tag not in nightly)
    return PrunePlan(channel, found, others, kept, _freed(images, stays))


def targets_of(images: Sequence[SurveyedImage], steps: int) -> dict[str, str]:
    """The digests that tags would be rolled back to in so many steps, each with one such tag."""
    by_digest = {image.digest: image for image in images}

    def notes_of(tag: str, digest: str) -> list[Note]:
        # The notes of an index's images are among its own.
        notes = by_digest[digest].notes if digest in by_digest else ()
        return [each for each in notes if (each.move.tag, each.move.digest) == (tag, digest)]

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
    sizes: dict[str, int] = {}
    staying: set[str] = set()
    for image in images:
        own: dict[str, int] = {}
        for manifest in filter(None, image.everything.values()):
            body = manifest.body
            own[manifest.digest] = len(manifest.content)
            own |= {part.digest: part.size for part in (body.config, *(body.layers or ())) if part}
        sizes |= own
        staying |= own.keys() if image.digest in stays else set()
    return sum(size for digest, size in sizes.items() if digest not in staying)


# The plan, carried out.


def prune(
    repository: Repository,
    channel: str,
    keep: int,
    recipes: Iterable[Recipe],
    settings: Settings,
    log: Log,
    *,
    signed: bool = False,
    dry_run: bool = True,
) -> tuple[PrunePlan, tuple[str, ...]]:
    """Delete all nightlies of a channel but the newest ``keep`` and the nightlies in use.

    The plan, and the tags that were deleted.  The targets of ``keep`` rollbacks, one after the
    other, are in use.

    ``recipes`` are the recipes of the repository: their versions and tags are no nightlies;
    ``signed`` deletes signed images, too.  Raises ``BusyError`` where another run on this machine
    gives or deletes tags, and like ``delete``.
    """
    names = {
        name
        for recipe in recipes
        for name in (recipe.version, *recipe.image.tags, *recipe.image.moving)
    }
    settings.require_directories()
    deleted: tuple[str, ...] = ()
    with ExitStack() as held:
        for lock in () if dry_run else (NIGHTLY, TAGS):
            held.enter_context(named_lock(settings.cache_dir, lock))
        work = held.enter_context(workspace(settings.cache_dir))
        images = survey(repository, channel, trust_of(settings, work))
        decided = plan_prune(images, channel, keep, signed=signed, names=names)
        if not dry_run:
            hub = Hub(settings.hub_api, log) if repository.registry == HUB else None
            deleted = delete(repository, decided, log, hub)
    return decided, deleted


def delete(
    repository: Repository, plan: PrunePlan, log: Log, hub: Hub | None = None
) -> tuple[str, ...]:
    """Carry out a plan, image by image; the tags that were deleted.

    A registry deletes all tags of a digest with it.  So right before each image all tags that may
    move or are new are looked up, the channel's last: an image that one of them points to stays,
    and so does a part of an image that stays.  The tag of a nightly names one build and does not
    move.

    On Docker Hub tags are deleted one by one, and other tags of an image stay.  It deletes no
    manifests on request: attachments without a tag stay until it finds them unused.

    Raises ``RegistryError`` where the registry allows no deletion, ``FetchError``.
    """
    fixed = {tag for each in plan.candidates for tag in each.tags}
    gone: dict[str, SurveyedImage] = {}
    delete_one = partial(hub.delete_tag, repository.path) if hub else repository.delete
    for image in plan.deletions:
        # On Docker Hub, an image that has another tag keeps its manifest anyway.
        listed = [] if hub else images_among(repository.tags())
        tags = [*(tag for tag in listed if tag not in fixed | {plan.channel}), plan.channel]
        if (tag := _tag_of(repository, image, tags, plan)) is not None:
            log(f"{', '.join(image.tags)} stays: {tag} points to it now")
            continue
        # Shared parts are deleted with the last image that has them, which may have to stay.
        left = (each for each in plan.deletions if each.digest not in {image.digest, *gone})
        kept = plan.kept.union(*(each.names for each in left))
        attached = image.attached_tags if hub else [*image.attached][::-1]  # lists of others last
        for name in attached:
            if name not in kept:
                delete_one(name)
        if _tag_of(repository, image, [plan.channel], plan) is not None:
            log(f"{', '.join(image.tags)} stays, without its attachments: push it again")
            continue
        # An index before its images: a registry may refuse to delete what an index lists.
        for name in image.tags if hub else [each for each in image.manifests if each not in kept]:
            delete_one(name)
        log(f"deleted {', '.join(image.tags)}")
        gone[image.digest] = image
    return tuple(tag for image in gone.values() for tag in image.tags)


def _tag_of(
    repository: Repository, image: SurveyedImage, tags: Iterable[str], plan: PrunePlan
) -> str | None:
    """A tag that points to an image or to an index that lists it; None: there is none."""
    deleted = image.manifests.keys() - plan.kept
    for tag in tags:
        digest = repository.head_digest(tag)
        reached = {digest}
        if digest not in plan.kept and (found := repository.manifest(tag)):
            reached |= {entry["digest"] for entry in entries_of(found)}
        if not reached.isdisjoint(deleted):
            return tag
    return None
