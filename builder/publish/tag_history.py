"""How a tag came to where it is: each move, with its reason, is attached to the image moved to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from builder.errors import RegistryError
from builder.publish.referrers import attach, referrers
from builder.publish.remote_image import CREATED
from builder.tools.registry.client import Manifest, Repository
from builder.tools.registry.responses import TAG, Digest

MOVE = "application/vnd.builder.move.v1"
By = Literal["", "night", "rollback"]
"""How a move came about; empty: somebody moved the tag on."""


@dataclass(frozen=True, slots=True)
class Move:
    """A tag that was moved to an image: from which, when (RFC 3339, UTC) and why."""

    tag: str
    digest: str
    before: str
    created: str
    reason: str
    by_night: bool = False
    """Whether nobody decided on it: upstream had moved."""
    back: bool = False
    """Whether it took back the moves before it: a rollback."""
    number: int = 1
    """Which of the tag's moves it was: clocks differ."""
    version: str = ""
    """The version of the image that the tag was moved to, where the note has it."""
    earlier: tuple[str, ...] = ()
    """The numbers of the tag's earlier moves to the same image: other notes on it are of none."""


class _Note(BaseModel):
    """The annotations of a move's note; what does not fit is no note."""

    model_config = ConfigDict(hide_input_in_errors=True)

    tag: str = Field(pattern=TAG, alias="builder.move.tag")
    before: Digest | Literal[""] = Field("", alias="builder.move.before")
    created: str = Field("", alias=CREATED)
    reason: str = Field("", alias="builder.move.reason")
    by: str = Field("", alias="builder.move.by")
    number: Annotated[str, Field(pattern="^[0-9]{1,9}$")] = Field("0", alias="builder.move.number")
    version: str = Field("", alias="builder.move.version")
    earlier: str = Field("", alias="builder.move.earlier")

    def move(self, digest: str) -> Move:
        """The move to an image that it tells of."""
        by_night, back = self.by == "night", self.by == "rollback"
        return Move(
            self.tag,
            digest,
            self.before,
            self.created,
            self.reason,
            by_night,
            back,
            int(self.number),
            self.version,
            tuple(filter(None, self.earlier.split(","))),
        )


def note(
    repository: Repository,
    image: Manifest,
    tag: str,
    before: str,
    reason: str,
    by: By = "",
    version: str = "",
) -> Move:
    """Attach to an image why a tag is moved to it: right before the tag is.

    Until the tag is moved the note does not count.  Raises ``RegistryError``, ``FetchError``.
    """
    created = datetime.now(UTC).isoformat(timespec="microseconds")
    happened = moves(repository, tag)
    known = [*_notes(repository, tag, image.digest), *happened[:1]]
    number = max((each.number for each in known), default=0) + 1
    earlier = tuple(str(each.number) for each in happened if each.digest == image.digest)
    told = {
        "tag": tag,
        "before": before,
        "reason": reason,
        "by": by,
        "number": str(number),
        "version": version,
        "earlier": ",".join(earlier),
    }
    annotations = {f"builder.move.{name}": value for name, value in told.items() if value}
    attach(repository, image, MOVE, annotations | {CREATED: created})
    by_night, back = by == "night", by == "rollback"
    return Move(
        tag, image.digest, before, created, reason, by_night, back, number, version, earlier
    )


def moves(repository: Repository, tag: str) -> list[Move]:
    """The moves of a tag, newest first, as far as the registry tells.

    Raises ``RegistryError``, ``FetchError``.
    """

    def notes_of(digest: str) -> list[Move] | None:
        found = _notes(repository, tag, digest)
        return found if found or repository.head_digest(digest) else None

    return list(followed(repository.head_digest(tag), notes_of))


def followed(digest: str, notes_of: Callable[[str], Sequence[Move] | None]) -> Iterator[Move]:
    """The moves that led a tag to where it is, newest first.

    ``notes_of`` gives the notes of the tag on an image; None where the image is gone, and its notes
    with it.  A move counts where the tag leads to its image, or a later move names that image as
    the one before; each has a lower number than the one after it.  So the note of a move that was
    interrupted is left out: the tag never led there with that number.  Where the image of the move
    before is gone, an earlier move to an image that was led to since is gone on with, if a later
    note on that image has its number.
    """
    happened: set[tuple[str, str]] = set()
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
            notes = [each for each in seen if (each.digest, str(each.number)) in happened]
        earlier = [each for each in notes if each.number < below]
        if not earlier:
            return
        last = max(earlier, key=lambda each: (each.number, each.created))
        happened |= {(last.digest, number) for number in last.earlier}
        yield last
        digest = last.before


def _notes(repository: Repository, tag: str, digest: str) -> list[Move]:
    """The notes of a tag's moves to an image, whether these came about or not."""
    return [each for each in notes_among(referrers(repository, digest), digest) if each.tag == tag]


def notes_among(entries: Iterable[Mapping[str, Any]], digest: str) -> Iterator[Move]:
    """The notes of moves to an image among the descriptors of what refers to it."""
    for entry in entries:
        if entry.get("artifactType") == MOVE:
            with suppress(ValidationError):
                noted = _Note.model_validate(entry.get("annotations") or {})
                yield noted.move(digest)


def previous(repository: Repository, tag: str) -> str:
    """The digest that a rollback goes to; raises ``RegistryError`` where that is not known, or
    there is no such tag.
    """
    found = before(repository, tag)
    if not found:
        require_tag(repository, tag)
        raise RegistryError(
            f"what {repository.name}:{tag} was before is not known",
            hint="say it: --to DIGEST, or --to TAG",
        )
    return found


def before(repository: Repository, tag: str) -> str:
    """The digest that a tag led to before it first came to where it is; empty: it is not known.

    A way back is never a way forward: what was taken back once is not gone to again.
    """
    return way_back(moves(repository, tag))


def way_back(known: Sequence[Move]) -> str:
    """The same of moves that are known, newest first."""
    been: list[str] = []  # what can be gone back to, the newest last
    for move in reversed(known):
        if move.digest in been:
            been = been[: been.index(move.digest)]
        elif move.back:
            been = []  # what it was taken back from is no way back
        elif move.before not in been[-1:]:
            been.append(move.before)
        been.append(move.digest)
    return been[-2] if len(been) > 1 else ""


def require_tag(repository: Repository, tag: str) -> str:
    """The digest that a tag leads to; raises ``RegistryError`` where a repository has none."""
    found = repository.head_digest(tag)
    if not found:
        raise RegistryError(f"{repository.name} has no tag {tag}")
    return found
