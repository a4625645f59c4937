"""How a tag came to where it is: each move, with its reason, is attached to the image moved to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from builder.artifacts import attach, referrers
from builder.errors import RegistryError
from builder.served import CREATED
from builder.tools.registry import Manifest, Repository

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


def note(
    repository: Repository,
    image: Manifest,
    tag: str,
    before: str,
    reason: str,
    by: By = "",
) -> Move:
    """Attach to an image why a tag is moved to it."""
    created = datetime.now(UTC).isoformat(timespec="microseconds")
    last = next(_moves(repository, tag), None)
    number = last.number + 1 if last else 1
    told = {
        "tag": tag,
        "before": before,
        "reason": reason,
        "by": by,
        "number": str(number),
    }
    annotations = {f"builder.move.{name}": value for name, value in told.items() if value}
    attach(repository, image, MOVE, annotations | {CREATED: created})
    by_night, back = by == "night", by == "rollback"
    return Move(tag, image.digest, before, created, reason, by_night, back, number)


def moves(repository: Repository, tag: str) -> list[Move]:
    """The moves of a tag, newest first, as far as the registry tells.

    Raises ``RegistryError``, ``FetchError``.
    """
    return list(_moves(repository, tag))


def _moves(repository: Repository, tag: str) -> Iterator[Move]:
    """Each move leads to the image of the one before it.

    With an image that is gone its moves are, too; what the others tell of before that is told.
    """
    digest = repository.leads_to(tag)
    known: dict[str, list[Move]] = {}
    while digest:
        if digest not in known:
            of_tag = [each for each in _moves_to(repository, digest) if each.tag == tag]
            known[digest] = sorted(of_tag, key=lambda each: (each.number, each.created))
        left = known[digest]
        if not left and not repository.told(digest):
            left = max(known.values(), key=lambda each: each[-1].number if each else -1)
        if not left:
            return
        last = left.pop()
        yield last
        digest = last.before


def _moves_to(repository: Repository, digest: str) -> Iterator[Move]:
    for entry in referrers(repository, digest):
        if entry.get("artifactType") == MOVE:
            told = entry.get("annotations") or {}
            number, by = (told.get(f"builder.move.{name}", "") for name in ("number", "by"))
            yield Move(
                told.get("builder.move.tag", ""),
                digest,
                told.get("builder.move.before", ""),
                told.get(CREATED, ""),
                told.get("builder.move.reason", ""),
                by == "night",
                by == "rollback",
                int(number) if number.isdecimal() else 0,
            )


def previous(repository: Repository, tag: str) -> str:
    """The digest that a rollback goes to; raises ``RegistryError`` where that is not known, or
    there is no such tag.
    """
    found = before(repository, tag)
    if not found:
        need_tag(repository, tag)
        raise RegistryError(
            f"what {repository.name}:{tag} was before is not known",
            hint="say it: --to DIGEST, or --to TAG",
        )
    return found


def before(repository: Repository, tag: str) -> str:
    """The digest that a tag led to before it first came to where it is; empty: it is not known.

    A way back is never a way forward: what was taken back once is not gone to again.
    """
    been: list[str] = []  # what can be gone back to, the newest last
    for move in reversed(moves(repository, tag)):
        if move.digest in been:
            been = been[: been.index(move.digest)]
        elif move.back:
            been = []  # what it was taken back from is no way back
        elif move.before not in been[-1:]:
            been.append(move.before)
        been.append(move.digest)
    return been[-2] if len(been) > 1 else ""


def need_tag(repository: Repository, tag: str) -> None:
    """Raise ``RegistryError`` where a repository has no such tag."""
    if not repository.told(tag):
        raise RegistryError(f"{repository.name} has no tag {tag}")
