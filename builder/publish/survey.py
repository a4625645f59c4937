"""The contents of a repository: its images, their age, and their attachments."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from builder.errors import GoneError, RegistryError
from builder.families.layout import CREATED
from builder.publish.remote_image import configuration
from builder.publish.tag_claims import claims_tag, read_claims
from builder.publish.tag_history import Note, notes_claimed, notes_in
from builder.publish.verdicts import Trust, built_at
from builder.tools.registry.client import Manifest, Repository

KEY = r"[0-9a-f]{12}"
DEEPEST = 4  # indexes within each other
# Tags named after the digest of an image: cosign's and others have a suffix, and the one of the
# distribution specification's "Referrers Tag Schema" has none.
ATTACHED = re.compile(r"sha256-([0-9a-f]{64})(\.[a-z0-9]+)?")
KEPT = re.compile(r"\.(?:moves|nights)$")
"""Tags under which builder keeps claims to move a tag, and nightly runs: they are no images."""
SIGNED_SUFFIXES = frozenset({".sig", ".att"})
SIGNATURES = (
    "application/vnd.dev.cosign.",
    "application/vnd.dev.sigstore.",
    "application/vnd.cncf.notary.",
)
# Clients without a type for an artifact write the type of its configuration.
NO_KIND = "application/vnd.oci."


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
    """The tags without those under which builder keeps claims and nightly runs of another tag."""
    there = {*tags}
    return [tag for tag in tags if not (KEPT.search(tag) and tag.rpartition(".")[0] in there)]


def survey(repository: Repository, channel: str, trust: Trust) -> list[SurveyedImage]:
    """All images of a repository that have a tag; the nightlies of a channel with their age.

    A tag of an attachment is no image: it belongs to the image that it is attached to.  Tags under
    which builder keeps claims and nightly runs are no images either.  Docker Hub
    counts each manifest that is fetched as a pull, so few are: an attachment is read only where its
    descriptor does not name its type.  Raises ``RegistryError``, ``FetchError``.
    """
    listed = repository.tags()
    tags = images_among(listed)
    claimed: dict[str, list[Note]] = {}
    for tag in tags:
        claims = read_claims(repository, tag) if claims_tag(tag) in listed else ()
        for digest, notes in notes_claimed(repository, tag, claims, trust).items():
            claimed.setdefault(digest, []).extend(notes)
    by_subject: dict[str, list[str]] = {}
    for tag in tags:
        if attached := ATTACHED.fullmatch(tag):
            by_subject.setdefault(f"sha256:{attached[1]}", []).append(tag)
    attachments = _Attachments(repository, by_subject, trust)
    images = []
    tagged = _tagged(repository, tags, channel)
    known = {digest: manifest for digest, (manifest, _) in tagged.items()}
    for digest, (manifest, named) in tagged.items():
        aged = any(is_nightly(tag, channel, ()) for tag in named)
        manifests = _with_parts(repository, manifest, named[0], known)
        *_, built = found = attachments.of(manifests)
        created = (built or _created(repository, manifests.values())) if aged else None
        image = SurveyedImage(digest, tuple(named), created, manifests, *found[:-1])
        by_text = {note.text: note for note in (*image.notes, *claimed.get(digest, ()))}
        images.append(replace(image, notes=tuple(by_text.values())))
    return images


def _tagged(
    repository: Repository, tags: Collection[str], channel: str
) -> dict[str, tuple[Manifest, list[str]]]:
    """The manifests that tags point to, by digest, and those tags; without tags of attachments.

    A nightly has one tag and is fetched by it; the digest of another tag is asked for first.
    """
    found: dict[str, tuple[Manifest, list[str]]] = {}
    others = [tag for tag in tags if not ATTACHED.fullmatch(tag)]
    for tag in sorted(others, key=lambda tag: not is_nightly(tag, channel, ())):
        digest = "" if is_nightly(tag, channel, ()) else repository.head_digest(tag)
        there = None if digest in found else repository.manifest(digest or tag)
        if there is not None:
            found.setdefault(there.digest, (there, []))[1].append(tag)
        elif digest in found:
            found[digest][1].append(tag)
    return {digest: (there, sorted(named)) for digest, (there, named) in found.items()}


_Direct = tuple[dict[str, Manifest | None], list[dict[str, Any]]]


@dataclass(slots=True)
class _Attachments:
    """Finds the attachments of images; ``by_subject`` are the tags named after their digests."""

    repository: Repository
    by_subject: Mapping[str, Sequence[str]]
    trust: Trust
    """Whose notes count."""
    lists: bool | None = None
    """Whether the registry has the referrers API; None: not known yet."""
    unlisted: str = ""
    """A manifest whose referrers neither the registry nor a tag lists."""
    known: dict[str, _Direct] = field(default_factory=dict)
    """Attachments by digest of the image: images of an index have tags of their own."""

    def of(
        self, manifests: Collection[str]
    ) -> tuple[
        dict[str, Manifest | None], tuple[str, ...], bool, tuple[Note, ...], datetime | None
    ]:
        """The attachments of an image, their tags, whether one is a signature, the notes of moves
        among them, and when the image was built by the first of its verdicts."""
        attached: dict[str, Manifest | None] = {}
        tags: list[str] = []
        kinds: list[str] = []
        notes: list[Note] = []
        built: list[datetime] = []
        subjects = list(manifests)
        for subject in subjects:  # grows: an attachment may have attachments
            found, entries = self._direct(subject)
            kinds += [str(entry.get("artifactType") or "") for entry in entries]
            notes += notes_in(entries, subject, self.repository.path, self.trust)
            built += filter(None, [built_at(entries, subject)])
            subjects += [digest for digest in found if digest not in {*attached, *manifests}]
            attached |= found
            tags += self.by_subject.get(subject, ())
        kinds += [kind for manifest in attached.values() if manifest for kind in _kinds(manifest)]
        return attached, tuple(tags), _signed(tags, kinds), tuple(notes), min(built, default=None)

    def _direct(self, subject: str) -> _Direct:
        if subject not in self.known:
            self.known[subject] = self._found(subject)
        return self.known[subject]

    def _found(self, subject: str) -> _Direct:
        listed = self._listed(subject)
        found: dict[str, Manifest | None] = {}
        entries = list(listed or ())
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

    def _listed(self, subject: str) -> list[dict[str, Any]] | None:
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


def entries_of(manifest: Manifest) -> list[dict[str, Any]]:
    """The descriptors that an index lists; for any other manifest none."""
    return list(manifest.parsed().get("manifests") or [])


def _created(repository: Repository, manifests: Iterable[Manifest]) -> datetime | None:
    """When an image was created, by its label, of an index the earliest of its images.

    None where it has no such label, or is no image.
    """
    found = [_created_by_label(repository, each) for each in manifests]
    return min(filter(None, found), default=None)


def _created_by_label(repository: Repository, manifest: Manifest) -> datetime | None:
    try:
        config: Any = configuration(repository, manifest)
        labels = (config.get("config") or {}).get("Labels") or {}
        found = datetime.fromisoformat(labels.get(CREATED, ""))
    except (AttributeError, TypeError, ValueError, GoneError, RegistryError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _kinds(manifest: Manifest) -> list[str]:
    parsed = manifest.parsed()
    parts = [parsed.get("config") or {}, *(parsed.get("layers") or [])]
    return [parsed.get("artifactType") or "", *(part.get("mediaType") or "" for part in parts)]


def _signed(tags: Collection[str], kinds: Collection[str]) -> bool:
    suffixes = {found[2] for tag in tags if (found := ATTACHED.fullmatch(tag))}
    return not suffixes.isdisjoint(SIGNED_SUFFIXES) or any(
        kind.startswith(SIGNATURES) for kind in kinds
    )
