"""A verified image gets its tags on a registry: all of it is there before the first one is given.

It is uploaded under its digest, then what belongs to it (bills of materials, a signature), then
it gets its immutable tag (``VERSION-KEY12``), which is compared with the verified digest; every
other tag is given by digest, without a second upload.  A tag that is not declared as moving stays
where it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import settings
from builder.errors import BuilderError, RegistryError
from builder.families.layout import LABEL_KEY
from builder.publish.referrers import Attachment, attach_all, referrers
from builder.publish.remote_image import served
from builder.publish.tag_history import By, Move, note
from builder.publish.upload import upload
from builder.publish.verdicts import VERDICT, Trust, attached_verdicts, statement_of
from builder.recipes.schema import Recipe
from builder.records.record import Record
from builder.tools.log import Log
from builder.tools.registry import cosign
from builder.tools.registry.client import Manifest, Repository
from builder.tools.registry.credentials import HUB

Attachments = Callable[[Collection[str]], Sequence[Attachment]]
"""What belongs to a verified image, but for the types that are attached already."""
NIGHTLY, TAGS = "nightly", "tags"
"""The locks on this machine of a night, and of who moves a tag by hand; who deletes holds both."""
HOLDS = re.compile(r"-[0-9a-f]{12}$|\.nights$|^sha256-")
"""Tags that are given once, or that builder and others keep what belongs to images under."""


@dataclass(frozen=True, slots=True)
class Tags:
    """What an image is called on its registry: the immutable tag, those that stay, those that
    move."""

    repository: str
    own: str
    fixed: tuple[str, ...]
    moving: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """What a push did."""

    repository: str
    digest: str
    tags: tuple[str, ...]
    uploaded: int
    """Blobs that the registry did not have yet."""
    replaced: dict[str, str]
    """The digests of other images that tags which stay were taken from."""


def tags_of(record: Record, recipe: Recipe) -> Tags:
    """The tags that a push gives a verified image, by its record: the first reference is its own.

    A recipe's channel is none of them: the image of its written pin may be older than what a
    night has moved it to.
    """
    repository, _, own = record.references[0].rpartition(":")
    channel = recipe.track.channel if recipe.track else None
    named = (reference.rpartition(":")[2] for reference in record.references[1:])
    fixed = tuple(tag for tag in named if tag not in recipe.image.moving)
    moving = tuple(tag for tag in recipe.image.moving if tag != channel)
    return Tags(repository, own, fixed, moving)


def require_moving(recipes: Iterable[Recipe], repository: Repository, name: str, tag: str) -> None:
    """Raise ``RegistryError`` where a tag is a version's, which stays what it is.

    ``name`` is the repository's in the recipes.  They say which tags stay and which move; of a tag
    that none of them names, the image that it leads to says whether it is that one's version.
    """
    images = [recipe.image for recipe in recipes if recipe.image.repository == name]
    if any(tag in image.moving for image in images):
        return
    owners = [each.name for each in recipes if each.image in images and tag in each.image.tags]
    there = served(repository, tag) if not owners else None
    if there is not None and tag == there.version:
        owners = [f"an image of version {tag}, whose recipe is no longer here"]
    if owners:
        raise RegistryError(
            f"{tag} is the tag of {owners[0]}: it stays what it is",
            hint="a new image of that version takes `builder push --replace --reason TEXT`",
        )


@dataclass(frozen=True, slots=True)
class Pushing:
    """How an image is pushed."""

    work: Path
    """An empty directory for the saved image."""
    log: Log
    trust: Trust
    """Whose key signs the image and its verdict; an empty one: nobody's."""
    attachments: Attachments
    """Of the image that is pushed, or of the engine's where a trusted verdict is attached."""
    replace: str | None = None
    """The reason for which a tag that stays may be taken from another image."""
    there: str = ""
    """The digest of the verified image of this key that the registry has; empty: none."""
    verified: Record | None = None
    """This machine's record of the image that is pushed; None: a trusted verdict is attached."""
    known: frozenset[str] = frozenset()
    """The tags of the repository."""


def push(record: Record, tags: Tags, how: Pushing) -> Published:
    """Push the image of a record, then give it its tags.

    Where the registry has a verified image of this key, that one stays and gets the tags.

    Raises ``RegistryError`` where a tag that stays is taken and there is no reason to replace it,
    or the registry refuses; ``TagMovedError`` where somebody else moves one of the tags meanwhile;
    ``FetchError`` when the registry does not answer; ``WorldError`` where the image cannot be
    signed, or this machine's clock is wrong.
    """
    repository = opened(tags.repository, how.log)
    digest = how.there or record.digest
    before = {tag: _led_to(repository, tag, tags, how) for tag in (tags.own, *tags.fixed)}
    repository.require_clock()
    replaced = {tag: there for tag, there in before.items() if there not in {"", digest}}
    _require_free(record, tags.repository, digest, replaced, how.replace)
    if how.there and how.there != record.digest:
        how.log(f"the registry has {tags.own} already: {digest} gets the tags")
    image = _Image(repository, digest)
    uploaded, new = 0, False
    # Without a tag there may be an image nevertheless: a push may have broken.
    if not (how.there or (how.known and image.is_there())):
        fresh = not how.known
        image.manifest, uploaded = upload(repository, record, how.work, new=fresh)
        new = True
    _complete(repository, record, image, how, new=new)
    reason = how.replace or f"push of {record.recipe} {record.key[:12]}"
    given: list[str] = []
    with _telling(given):
        for tag in (tags.own, *tags.fixed, *tags.moving):
            was = before[tag] if tag in before else _led_to(repository, tag, tags, how)
            if was != digest:
                _give(repository, image.read(), tag, was, reason, tags)
            given.append(tag)
    return Published(tags.repository, digest, tuple(given), uploaded, replaced)


@dataclass(slots=True)
class _Image:
    """An image of a registry, whose manifest is fetched when it is needed: that is a pull."""

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


def _led_to(repository: Repository, tag: str, tags: Tags, how: Pushing) -> str:
    """Where a tag leads; what is known already is not asked again."""
    if tag == tags.own and how.there:
        return how.there
    return repository.head_digest(tag) if tag in how.known else ""


def _complete(
    repository: Repository, record: Record, image: _Image, how: Pushing, *, new: bool
) -> None:
    """Attach and sign what is missing of an image: it has all of that before it gets a tag.

    What was attached stays: words of a recipe that have changed since change no image.
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
        alone = new and not how.trust.signing
        attach_all(repository, image.read(), missing, new=alone)


def _kinds(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    """The types of what refers to an image."""
    return {str(each.get("artifactType")) for each in entries}


def vouch(
    repository: Repository, record: Record, trust: Trust, attachments: Attachments, log: Log
) -> None:
    """Sign an image of a registry that this machine has verified, and attach the verdict on it and
    what else belongs to it.

    What is there is not done again.  Raises ``RegistryError``, ``FetchError``, ``WorldError``.
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
    """The verdict on an image, where no like one is attached; the image itself is signed first."""
    verdicts = attached_verdicts(entries, record.digest, record.key, record.contract)
    if any(map(trust.is_ours, verdicts)):
        return []
    _sign(repository, record.digest, trust, log)
    return [Attachment(VERDICT, annotations=trust.annotations(statement_of(record)))]


def _sign(repository: Repository, digest: str, trust: Trust, log: Log) -> None:
    if trust.signing and cosign.sign(repository.name, digest, trust.signing, trust.work):
        log(f"signed {repository.name}@{digest[:19]}")


@contextmanager
def _telling(given: Sequence[str]) -> Iterator[None]:
    """Have an error say which tags were given before it."""
    try:
        yield
    except BuilderError as error:
        if not given:
            raise
        told = f"these tags were given before that: {', '.join(given)}"
        raise type(error)(error.what, f"{error.why}\n{told}", error.hint) from error


def _require_free(
    record: Record, repository: str, digest: str, taken: Mapping[str, str], replace: str | None
) -> None:
    """Raise ``RegistryError`` where tags lead elsewhere, and there is no reason to take them."""
    if taken and replace is None:
        raise RegistryError(
            f"{record.recipe} is not pushed: its tags are taken",
            "\n".join(f"{repository}:{tag} is {there}" for tag, there in taken.items())
            + f"\nthe verified image is {digest}",
            "a version stays what it was: give the recipe another one, or push with --replace "
            "--reason TEXT",
        )


def _give(
    repository: Repository, image: Manifest, tag: str, before: str, reason: str, tags: Tags
) -> None:
    """Give an image a tag; that one that stays is given for the first time needs no reason."""
    version = tags.own.rpartition("-")[0]
    if before or tag in tags.moving:
        note(repository, image, tag, before, reason, version=version)
    repository.put_tag(tag, image, before)
    require_leads_to(repository, tag, image.digest, by_content=tag == tags.own)


def opened(name: str, log: Log) -> Repository:
    """A repository of one's own; raises ``RegistryError`` where it would be Docker's."""
    repository = Repository(name, log, settings.load().token_hosts)
    if repository.registry == HUB and repository.path.startswith("library/"):
        raise RegistryError(
            f"{name} would be one of Docker Hub's official images",
            hint="say whose it is: BUILDER_NAMESPACE, or namespace in settings.toml",
        )
    return repository


def require_leads_to(
    repository: Repository, tag: str, digest: str, *, by_content: bool = False
) -> None:
    """Raise ``RegistryError`` where a tag that was just given leads elsewhere.

    ``by_content``: what is there is fetched, which Docker Hub counts as a pull.
    """
    found = repository.resolve(tag) if by_content else repository.head_digest(tag)
    if found != digest:
        raise RegistryError(
            f"{repository.name}:{tag} is not what was pushed",
            f"pushed {digest}, found {found or 'nothing'}: the registry altered it, or somebody "
            "else gave the tag in the same moment",
            "nothing that comes after it was tagged: look at `builder tag history`",
        )


def move(
    repository: Repository,
    tag: str,
    to: str,
    reason: str,
    by: By = "",
    before: str | None = None,
) -> Move:
    """Move a tag to the image that a tag or a digest leads to, and attach the reason.

    ``before`` is where the tag led when the move was decided on; None: it is asked for.
    Where the tag leads there already, nothing is done.  Raises ``RegistryError`` where there is no
    such image, or it has no label with a build key and where the tag is one
    that says what it holds; ``TagMovedError`` where somebody else moves the tag meanwhile.
    """
    if HOLDS.search(tag):
        raise RegistryError(
            f"{tag} is no tag that moves", "it says what it holds", "name a channel: latest, ..."
        )
    wanted = repository.manifest(to)
    repository.require_clock()
    if wanted is None:
        raise RegistryError(
            f"{repository.name} has no {to}",
            "it is gone, or was never there",
            "no tag was moved: `builder tag history` shows what there was",
        )
    image = None if "artifactType" in wanted.parsed() else served(repository, wanted.digest)
    if image is None or LABEL_KEY not in image.labels:
        raise RegistryError(
            f"{repository.name}:{to} is not labeled as an image of builder's",
            f"it is {wanted.digest}, without the label {LABEL_KEY}",
            "no tag was moved",
        )
    now = repository.head_digest(tag)
    if now == wanted.digest:
        return Move(tag, wanted.digest, now, "", "it is there already")
    before = now if before is None else before
    # The reason first, so that no move lacks it: it counts when the tag leads there.
    done = note(repository, wanted, tag, before, reason, by, image.version)
    repository.put_tag(tag, wanted, before)
    require_leads_to(repository, tag, wanted.digest)
    return done
