"""The tags of images in a registry: which ones an image gets, their history, moving one by hand.

A note of each move is attached to the image that the tag moved to.  A note lists the moves before
it, so one note tells the history of its tag: a move reads as much after a year as on the first day,
and it does not matter which images are gone.  Where a key is configured, notes are signed, and
others count for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from builder.build.record import Record
from builder.core import settings
from builder.core.errors import RegistryError
from builder.core.log import Log
from builder.docker.engine import HUB
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE
from builder.publish.registry import (
    Repository,
    Update,
    images_in,
    of_images,
    remote_image,
    updates_of,
)
from builder.publish.signing import UNSIGNED, Trust
from builder.publish.transport import TAG, Digest
from builder.publish.verdicts import Attachment, annotations_of, attach_all, noted, referrers
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe

MOVE = "application/vnd.builder.move.v2+json"
TEXT = "builder.move"
SIGNATURE = f"{TEXT}.signature"
"""The annotations of a note: a ``_Note`` as JSON, and its signature (base64)."""
PAST = 40
"""Earlier moves that a note lists."""
MOST = 10_000
"""Moves of a history: a forged note may list any moves."""
HIGHEST = 10**12
"""The number of a move that no tag reaches: a forged number must not stop the tag."""
By = Literal["", "night", "rollback", "replacement"]
"""Who moved a tag: a nightly run, a rollback, or a push that replaced the image of a tag that does
not move; empty: another push, or a promotion."""
Number = Annotated[int, Field(ge=1, le=HIGHEST)]
Size = Annotated[int, Field(ge=0, le=10**15)]


@dataclass(frozen=True, slots=True)
class Move:
    """A tag that was moved to the image ``digest``."""

    tag: str
    digest: str
    before: str
    """The digest that it pointed to before; empty: none."""
    created: str
    """RFC 3339, UTC; empty: the note is gone, or it is too far back."""
    reason: str
    by: By = ""
    number: int = 1
    """Its place among the moves of the tag: clocks differ."""
    version: str = ""
    """The version of the image, where the note has it."""
    update: int | None = None
    """Bytes to download for somebody who had the image before, of several platforms the most; None:
    the note does not have it."""
    updates: Mapping[str, int] = field(default_factory=dict)
    """The same by platform ("linux/amd64"), where the image is an index."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note: its move, and the moves before it, newest first, without their reasons."""

    move: Move
    past: tuple[Move, ...]

    @property
    def moves(self) -> tuple[Move, ...]:
        """All of them, newest first."""
        return (self.move, *self.past)


class _Step(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    number: Number
    digest: Digest
    by: By = ""


class _Note(BaseModel):
    """The text of a note; a text that does not fit is no note."""

    model_config = ConfigDict(frozen=True, strict=True)

    repository: str
    """Its path, so that a signed note speaks for one repository."""
    tag: str = Field(pattern=TAG)
    digest: Digest
    before: Digest | Literal[""] = ""
    number: Number
    created: str
    reason: str = ""
    by: By = ""
    version: str = ""
    update: Size | None = None
    updates: dict[str, Size] = {}
    past: tuple[_Step, ...] = Field((), max_length=PAST)
    first: Digest | Literal[""] = ""
    """The digest that the tag pointed to before the last of ``past``; empty: none."""

    def note(self) -> Note:
        move = Move(**self.model_dump(exclude={"repository", "past", "first"}))
        befores = (*(step.digest for step in self.past[1:]), self.first)
        past = (
            Move(self.tag, step.digest, before, "", "", by=step.by, number=step.number)
            for step, before in zip(self.past, befores, strict=False)
        )
        return Note(move, tuple(past))


def new_note(
    repository: Repository,
    wanted: Move,
    updates: Sequence[Update],
    trust: Trust,
    taken: Iterable[Note],
) -> tuple[Move, Attachment]:
    """A move that is about to be made, and its note, signed where there is a key.

    The note is attached to the image before the tag moves, so that no move lacks one: it counts
    once the tag points there.  ``taken`` are the notes of the tag on its new image.
    """
    last = last_note(repository, wanted.tag, wanted.before, trust)
    past = last.moves[:PAST] if last else ()
    numbers = [each.number for each in (*past, *(note.move for note in taken))]
    made = _Note(
        repository=repository.path,
        tag=wanted.tag,
        digest=wanted.digest,
        before=wanted.before,
        number=min(max(numbers, default=0) + 1, HIGHEST),
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        reason=wanted.reason,
        by=wanted.by,
        version=wanted.version,
        update=max((each.size for each in updates), default=None),
        updates={each.platform: each.size for each in updates if each.platform},
        past=tuple(_Step(number=each.number, digest=each.digest, by=each.by) for each in past),
        first=past[-1].before if past else "",
    )
    text = made.model_dump_json(exclude_defaults=True)
    return made.note().move, noted(trust, MOVE, TEXT, text)


def last_note(repository: Repository, tag: str, digest: str, trust: Trust) -> Note | None:
    """The note of the move that brought a tag to the image ``digest``; None: it is not noted."""
    return _newest(notes_of_tag(repository, tag, digest, trust)) if digest else None


def _newest(notes: Iterable[Note]) -> Note | None:
    """The newest of the notes of one tag on one image; earlier ones may be of interrupted moves."""
    return max(notes, key=lambda each: (each.move.number, each.move.created), default=None)


def notes_of_tag(repository: Repository, tag: str, digest: str, trust: Trust) -> list[Note]:
    """The notes of a tag's moves to an image, also of interrupted ones."""
    found = notes_in(referrers(repository, digest), digest, repository.path, trust)
    return [each for each in found if each.move.tag == tag]


def notes_in(
    entries: Iterable[Mapping[str, Any]], digest: str, path: str, trust: Trust
) -> Iterator[Note]:
    """The notes of moves to an image that count, among the descriptors of its referrers.

    ``path`` is the repository's.
    """
    for values in annotations_of(entries, MOVE):
        text, signature = str(values.get(TEXT, "")), str(values.get(SIGNATURE, ""))
        try:
            found = _Note.model_validate_json(text)
        except ValidationError:
            continue
        ours = (found.repository, found.digest) == (path, digest)
        if ours and trust.accepts(text, signature):
            yield found.note()


def past_moves(repository: Repository, tag: str, trust: Trust) -> tuple[Move, ...]:
    """The last moves of a tag, newest first, all but the first one without reasons."""
    found = last_note(repository, tag, repository.head_digest(tag), trust)
    return found.moves if found else ()


def moves(repository: Repository, tag: str, trust: Trust) -> list[Move]:
    """The moves of a tag, newest first, as far as the registry has their notes."""
    return [each for each in _known_moves(repository, tag, trust) if each.created]


def _known_moves(repository: Repository, tag: str, trust: Trust) -> list[Move]:
    """The moves of a tag, newest first; a move without a note is taken from a later note."""
    notes_of = cache(lambda digest: notes_of_tag(repository, tag, digest, trust))
    digest = repository.head_digest(tag)
    return list(trace_moves(digest, notes_of)) if digest else []


def reason_of(repository: Repository, move: Move, trust: Trust) -> str:
    """The reason of a move; empty where its note is gone."""
    if move.created:
        return move.reason
    found = _with_number(notes_of_tag(repository, move.tag, move.digest, trust), move.number)
    return found.move.reason if found else ""


def trace_moves(digest: str, notes_of: Callable[[str], Sequence[Note]]) -> Iterator[Move]:
    """The moves that led a tag to the image ``digest``, newest first.

    ``notes_of`` gives the notes of the tag on an image, none where the image is gone.  A move
    counts where the tag points to its image, or where a later note lists it: so the note of an
    interrupted move is left out.
    """
    note = _newest(notes_of(digest))
    left = list(note.moves) if note else []
    for _ in range(MOST):
        if not left:
            return
        move, *left = left
        if known := _with_number(notes_of(move.digest), move.number):
            move, left = known.move, list(known.past)  # which goes back further
        yield move


def _with_number(notes: Iterable[Note], number: int) -> Note | None:
    return _newest(each for each in notes if each.move.number == number)


def require_previous(repository: Repository, tag: str, trust: Trust) -> str:
    """The digest that a rollback of a tag goes to.

    The whole history is read only where the last note lists no such image: after 20 rollbacks, one
    after the other.  Raises ``RegistryError`` where it is not known, or the repository has no such
    tag; ``FetchError``.
    """
    known: Sequence[Move] = past_moves(repository, tag, trust)
    found = rollback_targets(known)
    if not found and len(known) > PAST:
        known = _known_moves(repository, tag, trust)
        found = rollback_targets(known)
    if not found:
        require_tag(repository, tag)
        if known and not known[-1].before and known[-1].digest == known[0].digest:
            what = f"{repository.name}:{tag} points to its first image: there is no earlier one"
        else:
            what = f"the image before the last move of {repository.name}:{tag} is not known"
        raise RegistryError(what, hint="name the image to move the tag to: --to TAG|DIGEST")
    return found[0]


def rollback_targets(known: Sequence[Move]) -> list[str]:
    """The digests that one rollback of a tag after the other goes to.

    ``known`` are its moves, newest first.  A rollback never goes to an image that was rolled back.
    """
    trail: list[str] = []  # the images that a rollback may go to, the newest last
    for move in reversed(known):
        if move.digest in trail:
            trail = trail[: trail.index(move.digest)]
        elif move.by == "rollback":
            trail = []  # the image that it was rolled back from is no target
        elif move.before not in trail[-1:]:
            trail.append(move.before)
        trail.append(move.digest)
    return [each for each in reversed(trail[:-1]) if each]


def require_tag(repository: Repository, tag: str) -> str:
    """The digest that a tag points to; raises ``RegistryError`` where there is no such tag."""
    found = repository.head_digest(tag)
    if not found:
        raise no_image(repository, tag)
    return found


def no_image(repository: Repository, reference: str) -> RegistryError:
    """The error where a repository lacks a tag or a digest."""
    kind = "image" if reference.startswith("sha256:") else "tag"
    return RegistryError(
        f"{repository.name} has no {kind} {reference}",
        "it was deleted, or was never there",
        "`builder push RECIPE` pushes an image; `builder tag history RECIPE TAG` shows the digests "
        "of earlier ones",
    )


# The tags that an image gets, and one that is moved by hand.

NIGHTLY, TAGS = "nightly", "tags"
"""Locks on this machine: of a nightly run, and of moving tags; deleting takes both."""
IMMUTABLE = re.compile(r"-[0-9a-f]{12}$|\.nights$|^sha256-")
"""Immutable tags, and tags under which builder and others keep attachments."""

Approve = Callable[[Sequence[Update]], None]
"""Gets the updates of a move."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of an image in its repository."""

    immutable: str
    """``VERSION-KEY12``: one build."""
    versions: tuple[str, ...]
    """Tags that stay on their version; they are replaced for a reason only."""
    moving: tuple[str, ...]


def tags_of(record: Record, recipe: Recipe) -> Tags:
    """The tags that a push gives an image; the first reference of its record is immutable.

    The recipe's channel is none of them: a nightly run may have moved it to an image that is newer
    than the recipe's pin.
    """
    immutable, *named = (reference.rpartition(":")[2] for reference in record.references)
    return _tags(immutable, named, recipe)


def tags_of_index(recipe: Recipe, key: str) -> Tags:
    """The tags of the index of that key; its images have only their own immutable tags."""
    return _tags(f"{recipe.version}-{key[:12]}", recipe.image.tags, recipe)


def _tags(immutable: str, names: Iterable[str], recipe: Recipe) -> Tags:
    channel = recipe.track.channel if recipe.track else None
    versions = tuple(tag for tag in names if tag not in recipe.image.moving)
    return Tags(immutable, versions, tuple(tag for tag in recipe.image.moving if tag != channel))


def open_repository(name: str, log: Log) -> Repository:
    """A repository to push to; raises ``RegistryError`` where it is one of Docker's own."""
    loaded = settings.load()
    repository = Repository(name, log, loaded.token_hosts)
    if repository.registry == HUB and repository.path.startswith("library/"):
        if loaded.namespace:
            what = f"the namespace {loaded.namespace} belongs to Docker Hub's official images"
        else:
            what = "BUILDER_NAMESPACE is not set: there is no account to push to"
        raise RegistryError(
            what,
            f"the image would be {repository.name}",
            "set BUILDER_NAMESPACE to your account on Docker Hub or to REGISTRY/ACCOUNT, or set "
            f"namespace in {settings.settings_file()}",
        )
    return repository


def repository_of(recipes: Catalog, name: str, log: Log) -> Repository:
    """The repository of a recipe's images.

    Raises ``RecipeError`` for an unknown recipe, ``RegistryError`` without a namespace.
    """
    recipe = recipes.engine(name).recipe
    return open_repository(settings.load().repository(recipe.image.repository), log)


def require_points_to(
    repository: Repository, tag: str, digest: str, *, by_content: bool = False
) -> None:
    """Raise ``RegistryError`` where a tag that was just given does not point to its image.

    ``by_content``: the manifest is fetched and hashed, which Docker Hub counts as a pull.
    """
    found = repository.resolve(tag) if by_content else repository.head_digest(tag)
    if found != digest:
        raise RegistryError(
            f"{repository.name}:{tag} is not what was pushed",
            f"pushed {digest}, found {found or 'nothing'}: the registry altered it, or another "
            "machine moved the tag at the same moment",
            "the remaining tags were not given: see `builder tag history`, and decide again",
        )


def move(
    repository: Repository,
    tag: str,
    to: str,
    reason: str,
    by: By = "",
    before: str | None = None,
    *,
    trust: Trust = UNSIGNED,
    approve: Approve = lambda _: None,
    dropped: Collection[str] = (),
) -> Move:
    """Move a tag to the image ``to``, a tag or a digest, and attach the reason to that image.

    ``before`` is the digest that the tag pointed to when the move was decided; None: it is looked
    up.  ``trust`` signs the note of the move.  ``approve`` gets the updates, unless the
    tag is new; where it raises an error, the tag does not move.  ``dropped`` are platforms that
    the tag may lose.  A tag that points to the image already is not moved.
    Raises ``RegistryError`` where the tag does not move, there is no such image, it has no label
    with a build key (any user with push access can write it), the tag would lose another platform,
    or another machine has moved the tag meanwhile.
    """
    if IMMUTABLE.search(tag):
        raise RegistryError(
            f"{tag} is not a moving tag",
            "it names one build, or an attachment",
            "name a moving tag, such as latest",
        )
    wanted = repository.manifest(to)
    repository.require_clock()
    if wanted is None:
        raise no_image(repository, to)
    images = () if "artifactType" in wanted.parsed() else images_in(repository, wanted)
    image = of_images(wanted, images)
    if LABEL_KEY not in image.labels:
        raise RegistryError(
            f"{repository.name}:{to} is not an image that builder made",
            f"it is {wanted.digest}, without the label {LABEL_KEY}",
            "no tag was moved",
        )
    now = repository.head_digest(tag)
    if now == wanted.digest:
        return Move(tag, wanted.digest, now, "", "the tag points there already")
    before = now if before is None else before
    updates = updates_of(repository, (tag,), before, images, repository.log, dropped)
    if updates:
        approve(updates)
    done = Move(tag, wanted.digest, before, "", reason, by, version=image.version)
    taken = notes_of_tag(repository, tag, wanted.digest, trust)
    done, note = new_note(repository, done, updates, trust, taken)
    attach_all(repository, wanted, [note])
    repository.put_tag(tag, wanted, before)
    require_points_to(repository, tag, wanted.digest)
    return done


def require_moving(
    recipes: Iterable[Recipe], repository: Repository, name: str, tag: str, trust: Trust
) -> None:
    """Raise ``RegistryError`` where a tag is a version tag, which does not move.

    ``name`` is the repository's name in the recipes.  They declare version tags and moving tags.
    For a tag that none of them has, the label with the version counts, then the tag's history,
    where replacements do not count.  A tag that exists and is not known to move does not move; a
    new tag may be any.  Raises ``FetchError``.
    """
    known = [recipe for recipe in recipes if recipe.image.repository == name]
    if any(tag in recipe.image.moving for recipe in known):
        return
    owner = next((recipe.name for recipe in known if tag in recipe.image.tags), "")
    there = None if owner else remote_image(repository, tag)
    if there is not None and tag == there.version:
        named = there.labels.get(LABEL_RECIPE) or f"an image of version {there.version}"
        owner = f"{named}, whose recipe is not in this catalog"
    if owner:
        raise RegistryError(
            f"{tag} is the version tag of {owner}: it does not move",
            hint="to replace the image of that version: `builder push --replace --reason TEXT`",
        )
    if there is None:
        return
    if all(move.by == "replacement" for move in past_moves(repository, tag, trust)):
        raise RegistryError(
            f"{repository.name}:{tag} is not known to move",
            "no recipe of this catalog has it, and no move of it is noted",
            "add it to image.moving in the recipe; to replace the image of a version: "
            "`builder push --replace --reason TEXT`",
        )
