"""The history of a tag: a note of each move is attached to the image that the tag moved to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from builder.errors import RegistryError
from builder.publish.referrers import attach, referrers
from builder.publish.remote_image import CREATED
from builder.publish.update_size import Update
from builder.tools.registry.client import Manifest, Repository
from builder.tools.registry.responses import TAG, Digest

MOVE = "application/vnd.builder.move.v1"
UPDATES = r"^([a-z0-9]+/[a-z0-9]+=[0-9]{1,15}(,|$))*$"
"""Bytes by platform: ``linux/amd64=1,linux/arm64=2``."""
By = Literal["", "night", "rollback"]
"""What moved a tag: a nightly run or a rollback; empty: a push or a promotion."""


@dataclass(frozen=True, slots=True)
class Move:
    """A tag that was moved to the image ``digest``."""

    tag: str
    digest: str
    before: str
    """The digest that it pointed to before; empty: none."""
    created: str
    """RFC 3339, UTC."""
    reason: str
    by_night: bool = False
    """Whether a nightly run moved it, because upstream had moved."""
    back: bool = False
    """Whether it was a rollback."""
    number: int = 1
    """Its place among the moves of the tag: clocks differ."""
    version: str = ""
    """The version of the image, where the note has it."""
    earlier: tuple[str, ...] = ()
    """The numbers of earlier moves of the tag to this image; other notes on it never came true."""
    update: int | None = None
    """Bytes to download for somebody who had the image before, of several platforms the most; None:
    the note does not have it."""
    updates: Mapping[str, int] = field(default_factory=dict)
    """The same by platform ("linux/amd64"), where the image is an index."""


class _Note(BaseModel):
    """The annotations of a note; annotations that do not fit are no note."""

    model_config = ConfigDict(frozen=True, strict=True)

    tag: str = Field(pattern=TAG, alias="builder.move.tag")
    before: Digest | Literal[""] = Field("", alias="builder.move.before")
    created: str = Field("", alias=CREATED)
    reason: str = Field("", alias="builder.move.reason")
    by: str = Field("", alias="builder.move.by")
    number: Annotated[str, Field(pattern="^[0-9]{1,9}$")] = Field("0", alias="builder.move.number")
    version: str = Field("", alias="builder.move.version")
    earlier: str = Field("", alias="builder.move.earlier")
    update: Annotated[str, Field(pattern="^[0-9]{0,15}$")] = Field("", alias="builder.move.update")
    updates: Annotated[str, Field(pattern=UPDATES)] = Field("", alias="builder.move.updates")

    def move(self, digest: str) -> Move:
        """The move to an image that it describes."""
        return Move(
            self.tag,
            digest,
            self.before,
            self.created,
            self.reason,
            by_night=self.by == "night",
            back=self.by == "rollback",
            number=int(self.number),
            version=self.version,
            earlier=tuple(filter(None, self.earlier.split(","))),
            update=int(self.update) if self.update else None,
            updates={
                platform: int(size)
                for platform, _, size in (each.partition("=") for each in self.updates.split(","))
                if platform
            },
        )


def attach_note(
    repository: Repository,
    image: Manifest,
    tag: str,
    before: str,
    reason: str,
    by: By = "",
    version: str = "",
    updates: Sequence[Update] = (),
) -> Move:
    """Attach a note of a move to an image, right before the tag is moved to it.

    ``updates`` are those of somebody who has the image ``before``.  The note does not count until
    the tag points there.  Raises ``RegistryError``, ``FetchError``.
    """
    created = datetime.now(UTC).isoformat(timespec="microseconds")
    known = moves(repository, tag)
    numbers = [each.number for each in (*_notes(repository, tag, image.digest), *known[:1])]
    note = _Note.model_validate(
        {
            "builder.move.tag": tag,
            "builder.move.before": before,
            "builder.move.reason": reason,
            "builder.move.by": by,
            "builder.move.number": str(max(numbers, default=0) + 1),
            "builder.move.version": version,
            "builder.move.earlier": ",".join(
                str(each.number) for each in known if each.digest == image.digest
            ),
            "builder.move.update": str(max(each.size for each in updates)) if updates else "",
            "builder.move.updates": ",".join(
                f"{each.platform}={each.size}" for each in updates if each.platform
            ),
            CREATED: created,
        }
    )
    written = note.model_dump(by_alias=True)
    attach(repository, image, MOVE, {name: value for name, value in written.items() if value})
    return note.move(image.digest)


def moves(repository: Repository, tag: str) -> list[Move]:
    """The moves of a tag, newest first, as far as the registry has them.

    Raises ``RegistryError``, ``FetchError``.
    """
    return list(_moves_to(repository, tag, repository.head_digest(tag)))


def last_move(repository: Repository, tag: str, digest: str) -> Move | None:
    """The move that brought a tag to the image ``digest``, where the tag points; None: not noted.

    Raises ``RegistryError``, ``FetchError``.
    """
    return next(_moves_to(repository, tag, digest), None)


def _moves_to(repository: Repository, tag: str, digest: str) -> Iterator[Move]:
    """The moves that led a tag to an image, newest first; each is looked up when it is needed."""

    def notes_of(digest: str) -> list[Move] | None:
        found = _notes(repository, tag, digest)
        return found if found or repository.head_digest(digest) else None

    return trace_moves(digest, notes_of)


def trace_moves(digest: str, notes_of: Callable[[str], Sequence[Move] | None]) -> Iterator[Move]:
    """The moves that led a tag to the image ``digest``, newest first.

    ``notes_of`` gives the notes of the tag on an image; None where the image is gone, and its notes
    with it.  A move counts where the tag points to its image, or where a later move names that
    image as the one before.  Each move has a lower number than the one after it: so the note of an
    interrupted move is left out, for the tag never pointed there with that number.  Where the image
    of the move before is gone, the trace continues at an earlier move to an image that the tag
    pointed to since, if a later note on that image has its number.
    """
    counted: set[tuple[str, str]] = set()
    known: dict[str, Sequence[Move] | None] = {}
    last: Move | None = None
    while digest:
        if digest not in known:
            known[digest] = notes_of(digest)
        notes = known[digest]
        below = last.number if last is not None else math.inf
        if notes is None:
            # The move to an image that is gone had the number before the last one's.
            below -= 1
            seen = [each for found in known.values() for each in found or ()]
            notes = [each for each in seen if (each.digest, str(each.number)) in counted]
        earlier = [each for each in notes if each.number < below]
        if not earlier:
            return
        last = max(earlier, key=lambda each: (each.number, each.created))
        counted |= {(last.digest, number) for number in last.earlier}
        yield last
        digest = last.before


def _notes(repository: Repository, tag: str, digest: str) -> list[Move]:
    """The notes of a tag's moves to an image, also of interrupted ones."""
    return [each for each in notes_in(referrers(repository, digest), digest) if each.tag == tag]


def notes_in(entries: Iterable[Mapping[str, Any]], digest: str) -> Iterator[Move]:
    """The notes of moves to an image, among the descriptors of its referrers."""
    for entry in entries:
        if entry.get("artifactType") == MOVE:
            with suppress(ValidationError):
                noted = _Note.model_validate(entry.get("annotations") or {})
                yield noted.move(digest)


def require_previous(repository: Repository, tag: str) -> str:
    """The digest that a rollback of a tag goes to.

    Raises ``RegistryError`` where it is not known, or the repository has no such tag.
    """
    known = moves(repository, tag)
    found = rollback_target(known)
    if not found:
        require_tag(repository, tag)
        if known and not known[-1].before:
            what = f"{repository.name}:{tag} points to its first image: there is no earlier one"
        else:
            what = f"the image before the last move of {repository.name}:{tag} is not known"
        raise RegistryError(what, hint="name the image to move the tag to: --to TAG|DIGEST")
    return found


def rollback_target(known: Sequence[Move]) -> str:
    """The digest that a tag pointed to before it first came to where it is; empty: not known.

    ``known`` are its moves, newest first.  A rollback never goes to an image that was rolled back.
    """
    trail: list[str] = []  # the images that a rollback may go to, the newest last
    for move in reversed(known):
        if move.digest in trail:
            trail = trail[: trail.index(move.digest)]
        elif move.back:
            trail = []  # the image that it was rolled back from is no target
        elif move.before not in trail[-1:]:
            trail.append(move.before)
        trail.append(move.digest)
    return trail[-2] if len(trail) > 1 else ""


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
