"""What is in a repository: the images, their age, and what is attached to them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from builder.errors import GoneError, RegistryError
from builder.publish.remote_image import CREATED, DEEPEST, configuration
from builder.publish.tag_history import Move, notes_among
from builder.tools.registry.client import Manifest, Repository

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
    notes: tuple[Move, ...] = field(default=(), repr=False)
    """The notes of moves to it, whether these came about or not."""

    @property
    def whole(self) -> dict[str, Manifest | None]:
        """Everything that goes with it, itself included."""
        return {**self.attached, **self.manifests}

    @property
    def names(self) -> tuple[str, ...]:
        """The digests of all that, and the tags of what is attached."""
        return (*self.whole, *self.attached_tags)


def is_nightly(tag: str, channel: str, names: Collection[str]) -> bool:
    """Whether a tag is ``CHANNEL-WHAT-KEY12``, and not one of a longer name's.

    ``names`` are channels, versions and other tags: ``nightly-main-3f2a91c0d-0123456789ab`` is
    the channel ``nightly``'s, unless there is a ``nightly-main``.
    """
    if re.fullmatch(rf"{re.escape(channel)}-[A-Za-z0-9._-]+-{KEY}", tag) is None:
        return False
    return not any(name.startswith(f"{channel}-") and tag.startswith(f"{name}-") for name in names)


def survey(repository: Repository, channel: str) -> list[Image]:
    """Everything that the tags of a repository lead to; the nightlies of a channel with their age.

    Tags of attachments are no images: they belong to what they are attached to.  Few requests are
    made, and as few manifests are fetched as can be, since Docker Hub counts each as a pull: an
    attachment is read only where nothing else tells what it is.  Raises ``RegistryError``,
    ``FetchError``.
    """
    tags = repository.tags()
    by_subject: dict[str, list[str]] = {}
    for tag in tags:
        if attached := ATTACHED.fullmatch(tag):
            by_subject.setdefault(f"sha256:{attached[1]}", []).append(tag)
    belongings = _Belongings(repository, by_subject)
    found_images = []
    for digest, (manifest, named) in _tagged(repository, tags, channel).items():
        aged = any(is_nightly(tag, channel, ()) for tag in named)
        created = _created(repository, manifest) if aged else None
        manifests = _with_parts(repository, manifest, named[0])
        belongs = belongings.of(manifests)
        found_images.append(Image(digest, tuple(named), created, manifests, *belongs))
    return found_images


def _tagged(
    repository: Repository, tags: Collection[str], channel: str
) -> dict[str, tuple[Manifest, list[str]]]:
    """What tags lead to, by digest, and which tags; but for those of attachments.

    A nightly has one tag and is fetched by it; of another tag it is asked first where it leads.
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


@dataclass(slots=True)
class _Belongings:
    """Finds what is attached to images; ``by_subject`` are the tags that say so."""

    repository: Repository
    by_subject: Mapping[str, Sequence[str]]
    lists: bool | None = None
    """Whether the registry lists referrers itself; None: it is not known yet."""
    unlisted: str = ""
    """A manifest whose referrers the registry did not list; no tag lists them either."""

    def of(
        self, manifests: Collection[str]
    ) -> tuple[dict[str, Manifest | None], tuple[str, ...], bool, tuple[Move, ...]]:
        """What is attached to an image, the tags of that, whether any of it is a signature, and
        the notes of moves among it."""
        attached: dict[str, Manifest | None] = {}
        tags: list[str] = []
        kinds: list[str] = []
        notes: list[Move] = []
        subjects = list(manifests)
        for subject in subjects:  # grows: what is attached may have something attached
            found, entries = self._direct(subject)
            kinds += [str(entry.get("artifactType") or "") for entry in entries]
            notes += notes_among(entries, subject)
            subjects += [digest for digest in found if digest not in {*attached, *manifests}]
            attached |= found
            tags += self.by_subject.get(subject, ())
        kinds += [kind for manifest in attached.values() if manifest for kind in _kinds(manifest)]
        return attached, tuple(tags), _signed(tags, kinds), tuple(notes)

    def _direct(self, subject: str) -> tuple[dict[str, Manifest | None], list[dict[str, Any]]]:
        """What is attached to one manifest, by digest, and the descriptors of it."""
        listed = self._listed(subject)
        found: dict[str, Manifest | None] = {}
        entries = list(listed or ())
        for tag in self.by_subject.get(subject, ()):
            # Where the registry lists referrers itself, nobody asks the list that a tag keeps.
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
        """What the registry itself lists of a manifest; None where it does not list referrers.

        A registry may fail to list one: what refers to that manifest would then not be seen.  So a
        registry lists none only where a tag of one manifest does instead, and all or none
        otherwise.  Raises ``RegistryError``.
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
                f"{self.repository.name} does not list what refers to {self.unlisted}",
                "it lists what refers to other images, so this answer is wrong",
                "nothing was deleted; try again",
            )
        return listed


def _with_parts(repository: Repository, manifest: Manifest, tag: str) -> dict[str, Manifest]:
    """What a tag leads to and, of an index, what it lists and the registry has, by digest.

    Raises ``RegistryError`` where indexes list indexes more than ``DEEPEST`` times.
    """
    found = {manifest.digest: manifest}
    level = [manifest]
    for _ in range(DEEPEST):
        named = dict.fromkeys(each["digest"] for within in level for each in entries_of(within))
        parts = [repository.manifest(digest) for digest in named if digest not in found]
        level = [part for part in parts if part is not None]
        if not level:
            return found
        found |= {part.digest: part for part in level}
    raise RegistryError(
        f"{repository.name}:{tag} lists indexes within each other",
        f"they are deeper than {DEEPEST}",
        "nothing was deleted; delete that tag, or push it again",
    )


def entries_of(manifest: Manifest) -> list[dict[str, Any]]:
    """The descriptors that an index lists; none of anything else."""
    return list(manifest.parsed().get("manifests") or [])


def _created(repository: Repository, manifest: Manifest) -> datetime | None:
    """The age of an image by its label; None where it has none, or is no image."""
    try:
        config: Any = configuration(repository, manifest)
        labels = (config.get("config") or {}).get("Labels") or {}
        found = datetime.fromisoformat(labels.get(CREATED, ""))
    except (AttributeError, TypeError, ValueError, GoneError, RegistryError):
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
