"""The contents of a repository: its images, their age, and their attachments."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from builder.core.errors import GoneError, RegistryError
from builder.engines.layout import CREATED
from builder.publish.registry import Manifest, Repository
from builder.publish.remote_image import configuration
from builder.publish.tag_history import Note, notes_in
from builder.publish.verdicts import Trust, built_at

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
    descriptor does not name its type.  Raises ``RegistryError``, ``FetchError``.
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
            created = _earliest(built) or _earliest(
                _created(repository, each) for each in manifests.values()
            )
        attached_tags = [tag for subject in entries for tag in by_subject.get(subject, ())]
        kinds = [str(each.get("artifactType")) for listed in entries.values() for each in listed]
        kinds += [kind for each in found.values() if each is not None for kind in _kinds(each)]
        notes = (
            note
            for subject, listed in entries.items()
            for note in notes_in(listed, subject, repository.path, trust)
        )
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
            # A registry with the referrers API ignores the list that a tag keeps.
            if self.lists or "." in tag:
                found[self.repository.head_digest(tag)] = None
            elif there := self.repository.manifest(tag):
                found[there.digest] = there
                entries += entries_of(there)
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
        answers for one manifest has to answer for all.  Raises ``RegistryError``.
        """
        if self.lists is False:
            return None
        listed = self.repository.referrers(subject)
        if listed is not None:
            self.lists = True
        elif not self.lists and subject.replace(":", "-") in self.by_subject.get(subject, ()):
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

    ``known`` manifests are not fetched again.  Raises ``RegistryError`` where indexes list indexes
    more than ``DEEPEST`` times.
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


def entries_of(manifest: Manifest) -> Descriptors:
    """The descriptors that an index lists; for any other manifest none."""
    return list(manifest.parsed().get("manifests") or [])


def _earliest(dates: Iterable[datetime | None]) -> datetime | None:
    return min(filter(None, dates), default=None)


def _created(repository: Repository, manifest: Manifest) -> datetime | None:
    """When an image was created, by its label; None where it has none, or is no image."""
    try:
        found = datetime.fromisoformat(configuration(repository, manifest).labels.get(CREATED, ""))
    except (ValueError, GoneError, RegistryError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _kinds(manifest: Manifest) -> list[str]:
    parsed = manifest.parsed()
    parts = [parsed.get("config") or {}, *(parsed.get("layers") or [])]
    return [parsed.get("artifactType") or "", *(part.get("mediaType") or "" for part in parts)]
