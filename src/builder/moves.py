"""How a tag came to where it is: each move, with its reason, is attached to the image moved to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from builder.artifacts import attach, referrers
from builder.errors import RegistryError
from builder.tools.registry import Manifest, Repository

MOVE = "application/vnd.builder.move.v1"
CREATED = "org.opencontainers.image.created"


@dataclass(frozen=True, slots=True)
class Move:
    """A tag that was moved to an image: from which, when (RFC 3339, UTC) and why."""

    tag: str
    digest: str
    before: str
    created: str
    reason: str


def note(repository: Repository, image: Manifest, tag: str, before: str, reason: str) -> Move:
    """Attach to an image why a tag is moved to it."""
    created = datetime.now(UTC).isoformat(timespec="microseconds")
    told = {"tag": tag, "before": before, "reason": reason}
    annotations = {f"builder.move.{name}": value for name, value in told.items() if value}
    attach(repository, image, MOVE, annotations | {CREATED: created})
    return Move(tag, image.digest, before, created, reason)


def moves(repository: Repository, tag: str) -> list[Move]:
    """The moves of a tag, newest first, as far as the registry tells.

    Raises ``RegistryError``, ``FetchError``.
    """
    digest, found = repository.leads_to(tag), list[Move]()
    while digest:
        known = [each for each in _moves_to(repository, digest) if each.tag == tag]
        older = [each for each in known if not found or each.created < found[-1].created]
        if not older:
            break
        found.append(max(older, key=lambda each: each.created))
        digest = found[-1].before
    return found


def _moves_to(repository: Repository, digest: str) -> Iterator[Move]:
    for entry in referrers(repository, digest):
        if entry.get("artifactType") == MOVE:
            told = entry.get("annotations") or {}
            yield Move(
                told.get("builder.move.tag", ""),
                digest,
                told.get("builder.move.before", ""),
                told.get(CREATED, ""),
                told.get("builder.move.reason", ""),
            )


def previous(repository: Repository, tag: str) -> str:
    """The digest that a tag led to before; raises ``RegistryError`` where that is not known."""
    known = moves(repository, tag)
    if not known or not known[0].before:
        raise RegistryError(
            f"what {repository.name}:{tag} was before is not known",
            hint="say it: --to DIGEST, or --to TAG",
        )
    return known[0].before
