"""Notes of moves that are attached although the tag does not move."""

from __future__ import annotations

from builder.publish.registry import Manifest, Repository
from builder.publish.signing import UNSIGNED, Trust
from builder.publish.tags import By, Move, new_note, notes_of_tag
from builder.publish.verdicts import attach_all


def attach_note(
    repository: Repository,
    image: Manifest,
    tag: str,
    before: str,
    reason: str,
    by: By = "",
    trust: Trust = UNSIGNED,
) -> Move:
    """Attach the note of a move, as somebody does who is interrupted before the tag moves."""
    wanted = Move(tag, image.digest, before, "", reason, by)
    taken = notes_of_tag(repository, tag, image.digest, trust)
    move, note = new_note(repository, wanted, (), trust, taken)
    attach_all(repository, image, [note])
    return move
