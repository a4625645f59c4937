"""Moves a tag while another machine may move it, too: of two at once, at most one succeeds.

Few registries honor a condition on a tag (If-Match), so a client cannot replace a tag only where it
has not moved.  So each client claims its move under the tag ``TAG.moves`` before it moves the tag,
and reads the claims again afterwards.  All know the same rule: the claim with the highest number
wins, then the later one.  A client that finds another winner gives the tag to that one's image and
reports that it lost; a client that finds the tag moved before its own turn withdraws its claim, and
one whose claim was overwritten, without a winner to be seen, reports that it does not know.  So
if there are two, whoever reports success is the winner, and the tag is at its image or at the image
of a later move; both may report failure although the tag moved.  Three or more at once overwrite
each other's claims: a client that reported success may lose the tag.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from builder.errors import BuilderError, RegistryError, TagMovedError
from builder.publish.tag_claims import Claim, read_claims, write_claim
from builder.publish.tag_history import Move, Note, last_note, new_note, parsed_note
from builder.publish.update_size import Update
from builder.publish.verdicts import Trust
from builder.tools.registry.client import Manifest, Repository

LOOKS = 10
"""How often a client looks whether a tag is where the winner wants it."""
PAUSE = 0.1
"""Seconds before the next look at a tag that somebody else moved: a client whose claim was
overwritten gives it to the winner as soon as it reads the claims."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A move that is about to be made: its note, which is attached first, and the claims so far."""

    note: Note
    claims: tuple[Claim, ...]


def plan_move(
    repository: Repository,
    wanted: Move,
    updates: Sequence[Update],
    trust: Trust,
    taken: Sequence[Note],
    *,
    new: bool = False,
) -> Planned:
    """Plan a move; ``taken`` are the notes of the tag on its new image.

    ``new``: the repository is known to have neither the tag nor claims to it.  Raises
    ``RegistryError``, ``FetchError``; ``WorldError`` where the note cannot be signed.
    """
    claims = () if new else read_claims(repository, wanted.tag)
    last = last_note(repository, wanted.tag, wanted.before, trust, claims)
    trusted = (each for each in claims if trust.accepts(each.text, each.signature))
    known = [parsed_note(each.text, each.signature, repository.path) for each in trusted]
    numbers = [each.move.number for each in (*known, *taken) if each is not None]
    return Planned(new_note(repository, wanted, last, numbers, updates, trust), claims)


def make_move(repository: Repository, planned: Planned, manifest: Manifest, trust: Trust) -> None:
    """Move a tag to a manifest whose note is attached.

    Raises ``TagMovedError`` where another client moved it meanwhile, or moves it at the same time
    and wins, or may have won; ``RegistryError``, ``FetchError``.
    """
    move = planned.note.move
    own = Claim(text=planned.note.text, signature=planned.note.signature)
    write_claim(repository, move.tag, own, planned.claims)
    try:
        repository.put_tag(move.tag, manifest, move.before)
    except TagMovedError as error:
        _withdraw(repository, move.tag, own)
        with suppress(BuilderError):  # its winner may have moved it again meanwhile
            there = repository.head_digest(move.tag)
            error.why += f"\nit is at {there or 'no digest'} after the claim was withdrawn"
        raise
    except BuilderError:
        _withdraw(repository, move.tag, own)
        raise
    there = ""
    for _ in range(LOOKS):
        claims = read_claims(repository, move.tag)
        winner = _winner(repository, planned, claims, trust)
        there = repository.head_digest(move.tag)
        if winner is None:
            raise _undecided(repository, move, there)
        if there == winner.digest:
            if winner.digest != move.digest:
                raise _lost(repository, move, winner)
            return
        notes = (parsed_note(each.text, "", repository.path) for each in claims)
        if there in {move.digest, *(each.move.digest for each in notes if each)}:
            _give(repository, move.tag, winner.digest)
        else:  # a client that makes no claims moved it, or one whose claim was overwritten
            time.sleep(PAUSE)
    raise RegistryError(
        f"{repository.name}:{move.tag} is not what was pushed",
        f"it was set to {move.digest}, and is {there or 'nothing'}: the registry altered it, or "
        "another client moved it at the same moment",
        "see `builder tag history`, and decide again",
    )


def _withdraw(repository: Repository, tag: str, own: Claim) -> None:
    withdrawn = own.model_copy(update={"withdrawn": True})
    with suppress(BuilderError):
        write_claim(repository, tag, withdrawn, read_claims(repository, tag))


def _winner(
    repository: Repository, planned: Planned, there: Sequence[Claim], trust: Trust
) -> Move | None:
    """The winner among this move and the moves that were claimed since it was planned.

    A claim that another client overwrote loses: that client does not know of it.  None where that
    one's claim is not there either, or was withdrawn.
    """
    known = {each.text for each in planned.claims} | {planned.note.text}
    found = [planned.note] if any(each.text == planned.note.text for each in there) else []
    for each in there:
        if each.text in known or each.withdrawn:
            continue
        note = parsed_note(each.text, each.signature, repository.path)
        same = note is not None and note.move.tag == planned.note.move.tag
        if note and same and trust.accepts(each.text, each.signature):
            found.append(note)
    winner = max(found, key=_rank, default=None)
    return winner.move if winner else None


def _rank(note: Note) -> tuple[int, str, str]:
    """The rank of a move: the higher wins.  Clocks count where neither client saw the other."""
    move = note.move
    return move.number, move.created, hashlib.sha256(note.text.encode()).hexdigest()


def _give(repository: Repository, tag: str, digest: str) -> None:
    """Give a tag to the image of the winner, which another client may have taken it from."""
    manifest = repository.manifest(digest)
    if manifest is None:
        raise RegistryError(
            f"{repository.name} no longer has {digest}",
            f"{tag} was about to be moved to it",
            "see `builder tag history`, and decide again",
        )
    repository.put_manifest(tag, manifest)


def _lost(repository: Repository, own: Move, winner: Move) -> TagMovedError:
    return TagMovedError(
        f"{repository.name}:{own.tag} was moved by another client at the same time",
        f"it was to move to {own.digest}, and is {winner.digest}: {winner.reason}",
        "it was left there: `builder tag history` shows the moves; decide again",
        own.tag,
    )


def _undecided(repository: Repository, own: Move, there: str) -> TagMovedError:
    return TagMovedError(
        f"another move of {repository.name}:{own.tag} was at work",
        f"it overwrote the claim of the move to {own.digest}; the tag is at {there or 'no digest'}",
        "look at it with `builder tag history`, and repeat the command",
        own.tag,
    )
