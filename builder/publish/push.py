"""Pushes a verified image: everything is uploaded before the first tag is given.

The image is uploaded under its digest, then its attachments (bills of materials, a signature), then
it gets its immutable tag (``VERSION-KEY12``), which is compared with the image that was checked.
Every other tag is given by digest, without a second upload.  Only tags that are declared as moving
are taken from another image.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import BuilderError, RegistryError
from builder.publish.referrers import Attachment, attach_all, referrers
from builder.publish.remote_image import configuration
from builder.publish.tag_history import attach_note
from builder.publish.tags import Tags, require_points_to
from builder.publish.update_size import Update, over_budget, update_of
from builder.publish.upload import LocalImage, local_image, upload
from builder.publish.verdicts import VERDICT, Trust, attached_verdicts, statement_of
from builder.records.record import Record
from builder.tools.log import Log
from builder.tools.registry import cosign
from builder.tools.registry.client import Manifest, Repository

Attachments = Callable[[Collection[str]], Sequence[Attachment]]
"""Makes the attachments of an image, except those of the types that it has already."""


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome of a push."""

    repository: str
    digest: str
    tags: tuple[str, ...]
    uploaded: int
    """The number of blobs that the registry lacked."""
    replaced: dict[str, str]
    """The digests that immutable and version tags pointed to before, by tag."""
    updates: tuple[Update, ...] = ()
    """One for each image that other tags pointed to before."""


@dataclass(frozen=True, slots=True)
class Pushing:
    """How an image is pushed."""

    work: Path
    """An empty directory for the saved image."""
    log: Log
    trust: Trust
    """The key that signs the image and its verdict; an empty one: they are not signed."""
    attachments: Attachments
    """Of the image that is pushed, or of the engine's where a trusted verdict is attached."""
    replace: str | None = None
    """The reason to take an immutable or a version tag from another image."""
    there: str = ""
    """The digest of the registry's verified image of this key; empty: it has none."""
    verified: Record | None = None
    """This machine's record of the image that is pushed; None: a trusted verdict is attached."""
    known: frozenset[str] = frozenset()
    """The tags of the repository."""
    budget: int | None = None
    """Megabytes that an update may have; None: any number."""
    over_budget: str | None = None
    """The reason why an update may exceed its budget."""


def push(repository: Repository, record: Record, tags: Tags, how: Pushing) -> Published:
    """Push the image of a record, then give it its tags.

    Where the registry has a verified image of this key, that image gets the tags instead.

    Raises ``RegistryError`` where an immutable or a version tag is taken and there is no reason to
    replace it, an update exceeds its budget without a reason, or the registry refuses;
    ``TagMovedError`` where another machine moves one of the tags at the same time; ``FetchError``
    when the registry does not answer; ``WorldError`` where the image cannot be signed, or this
    machine's clock is wrong.
    """
    digest = how.there or record.digest
    order = (tags.immutable, *tags.versions, *tags.moving)
    before = {tag: _digest_of(repository, tag, tags, how) for tag in order}
    repository.require_clock()
    others = {tag: there for tag, there in before.items() if there not in {"", digest}}
    replaced = {tag: there for tag, there in others.items() if tag not in tags.moving}
    _require_free(record, repository.name, digest, replaced, how.replace)
    if how.there and how.there != record.digest:
        how.log(f"the registry has {tags.immutable} already: {digest} gets the tags")
    image = _Image(repository, digest)
    local = None
    # An interrupted push may have left the image without a tag.
    if not (how.there or (how.known and image.is_there())):
        local = local_image(record, how.work)
        image.manifest = local.manifest
    followed: dict[str, list[str]] = {}
    for tag, there in others.items():
        if tag != tags.immutable:
            followed.setdefault(there, []).append(tag)
    updates = {was: _update(image, was, each, local, record, how) for was, each in followed.items()}
    uploaded = upload(repository, local, new=not how.known) if local else 0
    _complete(repository, record, image, how, new=local is not None)
    reason = how.replace or how.over_budget or f"push of {record.recipe} {record.key[:12]}"
    given: list[str] = []
    with _naming_given_tags(given):
        for tag, was in before.items():
            if was != digest:
                _give(repository, image.read(), tag, was, reason, tags, updates.get(was))
            given.append(tag)
    compared = tuple(each for each in updates.values() if each)
    return Published(repository.name, digest, tuple(given), uploaded, replaced, compared)


def _update(
    image: _Image,
    before: str,
    tags: Sequence[str],
    local: LocalImage | None,
    record: Record,
    how: Pushing,
) -> Update | None:
    """The update of tags from the image ``before``; None where that is gone.

    ``local`` is the image if it is not in the registry yet.  Raises ``RegistryError`` where the
    update exceeds its budget, and there is no reason for that.
    """
    new = image.read()
    found = update_of(image.repository, tags, before, new, how.log)
    if found is None:
        return None
    how.log(f"download: {found.text}")
    config = local.config if local else lambda: configuration(image.repository, new)
    budget = how.budget if how.over_budget is None else None
    if why := over_budget(image.repository, found, budget, new, config):
        raise RegistryError(
            f"{record.recipe} is not pushed: the update has more than the {budget} MB of [budget]",
            why,
            "make the update smaller, or push it all the same: --over-budget --reason TEXT",
        )
    return found


@dataclass(slots=True)
class _Image:
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


def _digest_of(repository: Repository, tag: str, tags: Tags, how: Pushing) -> str:
    """The digest that a tag points to; the registry is asked only for tags that it has."""
    if tag == tags.immutable and how.there:
        return how.there
    return repository.head_digest(tag) if tag in how.known else ""


def _complete(
    repository: Repository, record: Record, image: _Image, how: Pushing, *, new: bool
) -> None:
    """Attach what an image lacks, and sign it, before it gets a tag.

    Earlier attachments stay: they describe the same image, also where the recipe's words changed.
    """
    entries = [] if new else referrers(repository, image.digest, how.known)
    missing: list[Attachment] = []
    if how.verified is not None or image.digest == record.digest:
        missing += how.attachments(_kinds(entries))
    if how.verified is None:
        _sign(repository, image.digest, how.trust, how.log)
    else:
        missing += _vouched(repository, how.verified, entries, how.trust, how.log)
    if missing:
        # Newer versions of cosign list a signature there as well.
        unlisted = new and not how.trust.signing
        attach_all(repository, image.read(), missing, new=unlisted)


def _kinds(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    """The types of an image's referrers."""
    return {str(each.get("artifactType")) for each in entries}


def vouch(
    repository: Repository, record: Record, trust: Trust, attachments: Attachments, log: Log
) -> None:
    """Sign an image of a registry that passed its checks on this machine, and attach what it lacks.

    An image that has its verdict and its attachments stays as it is.  Raises ``RegistryError``,
    ``FetchError``, ``WorldError``.
    """
    entries = referrers(repository, record.digest)
    missing = [
        *attachments(_kinds(entries)),
        *_vouched(repository, record, entries, trust, log),
    ]
    image = repository.manifest(record.digest) if missing else None
    if image is not None:
        attach_all(repository, image, missing)


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
    _sign(repository, record.digest, trust, log)
    return [Attachment(VERDICT, annotations=trust.annotations(statement_of(record)))]


def _sign(repository: Repository, digest: str, trust: Trust, log: Log) -> None:
    if trust.signing and cosign.sign(repository.name, digest, trust.signing, trust.work):
        log(f"signed {repository.name}@{digest[:19]}")


@contextmanager
def _naming_given_tags(given: Sequence[str]) -> Iterator[None]:
    """Add the tags that were given before it to an error."""
    try:
        yield
    except BuilderError as error:
        if not given:
            raise
        note = f"these tags were already pushed: {', '.join(given)}"
        raise type(error)(error.what, f"{error.why}\n{note}", error.hint) from error


def _require_free(
    record: Record, repository: str, digest: str, taken: Mapping[str, str], replace: str | None
) -> None:
    """Raise ``RegistryError`` where tags are taken and there is no reason to replace them."""
    if taken and replace is None:
        raise RegistryError(
            f"{record.recipe} is not pushed: its tags are taken",
            "\n".join(f"{repository}:{tag} is {there}" for tag, there in taken.items())
            + f"\nthe image to push is {digest}",
            "give the recipe another version, or replace the image: --replace --reason TEXT",
        )


def _give(
    repository: Repository,
    image: Manifest,
    tag: str,
    before: str,
    reason: str,
    tags: Tags,
    update: Update | None,
) -> None:
    """Give an image a tag; a new immutable or version tag needs no note of the move."""
    version = tags.immutable.rpartition("-")[0]
    if before or tag in tags.moving:
        size = update.size if update else None
        attach_note(repository, image, tag, before, reason, version=version, update=size)
    repository.put_tag(tag, image, before)
    require_points_to(repository, tag, image.digest, by_content=tag == tags.immutable)
