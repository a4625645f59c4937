"""Hunks that git applied where they may not belong, or that the file has already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from builder.sources import diff
from builder.sources.conflicts import (
    SPREAD,
    Conflict,
    file_lines,
    followed,
    original_blob,
    places,
    trivial,
)
from builder.sources.diff import FileDiff
from builder.sources.scratch import Application, Scratch

MOST_PLACES = 8
"""Places of a hunk that are named."""
AROUND = 3
"""Lines on each side of a block that identify its place, as many as a diff shows."""
NEAR = 30
"""Lines from the place of a hunk in which a few added lines are looked for."""
DISTINCTIVE = 3
"""The fewest telling lines that identify a change, so that they can be found or missed."""
LONG = 5
"""The fewest telling lines of a block that nobody writes twice."""
SHARE = 0.8
"""The share of the lines of a distinctive block that shows that it is there."""


def doubtful_offsets(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], done: Application, origin: str
) -> list[Conflict]:
    """Hunks that git applied in a place where they may not belong.

    Their lines occur more than once, or the lines that they were made for have changed, and git
    found a copy of the old lines.
    """
    moves = {(index, number): by for index, number, by in done.offsets}
    found = []
    for index, file in enumerate(files):
        lines = file_lines(scratch, tree, file.old) or []
        for number, hunk in enumerate(file.hunks, 1):
            moved = moves.get((index, number), 0)
            stands = [str(place + 1) for place in places(hunk.before, lines)]
            if not moved and len(stands) < 2:
                continue
            at = followed(scratch, tree, file, hunk, origin)
            meant = f"; the original ones are at line {at.start + 1}" if at else ""
            if moved and len(stands) > 1:
                at_lines = ", ".join(stands[:MOST_PLACES])
                why = f"moved, and its lines occur in {len(stands)} places: lines {at_lines}{meant}"
                found.append(Conflict(file.path, number, why))
            elif at and abs(at.start - (hunk.start - 1 + moved)) > len(hunk.before):
                changed = "" if len(stands) > 1 else ", and have changed"
                why = f"its lines occur at line {hunk.start + moved}{meant}{changed}"
                found.append(Conflict(file.path, number, why))
    return found


@dataclass(frozen=True, slots=True)
class _Text:
    """A file of a tree without white space; ``made_for``: the lines that a diff expects."""

    path: str
    lines: list[bytes]
    made_for: list[bytes] | None
    moved: bool
    """Hunks were applied elsewhere than the diff says."""


def doubles(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], done: Application, origin: str
) -> list[Conflict]:
    """Blocks of an applied diff that ``tree`` has already, since the diff was made.

    Most lines of a distinctive block stand in one of the diff's files; or all of a shorter one
    near its place.
    """
    moved = {files[index].path for index, _, _ in done.offsets}
    texts: dict[str, _Text] = {}
    for file in files:
        old = scratch.entry(tree, file.old) if file.old and not file.binary else None
        if old is not None:
            blob = original_blob(scratch, file, origin)
            made_for = _bare(scratch, blob) if blob else None
            lines = _bare(scratch, old.object)
            texts[file.path] = _Text(file.path, lines, made_for, file.path in moved)
    found = []
    for file in files:
        text = texts.get(file.path)
        old = scratch.entry(tree, file.old or "")
        new = scratch.entry(done.tree, file.new) if file.new else None
        if text is None or old is None or new is None:
            continue
        after = _bare(scratch, new.object)
        changes = scratch.line_changes(old.object, new.object)
        last = max((start + count for start, count, *_ in changes), default=0)
        for start, count, new_start, new_count in changes:
            added = after[new_start : new_start + new_count]
            removed = text.lines[start : start + count]
            fresh = [line for line in added if line not in removed and not trivial(line)]
            span = len(added) + SPREAD
            double = _double(fresh, text, range(start, start + count), span, last)
            if double is None:
                others = [each for each in texts.values() if each is not text]
                double = _elsewhere(fresh, text, others, span)
            if double is not None:
                why = f"the lines that it adds at line {start + 1} are already at {double}"
                found.append(Conflict(file.path, 0, why))
    return found


def _double(fresh: Sequence[bytes], text: _Text, place: range, span: int, last: int) -> str | None:
    """Where a file has the telling lines of a block already; None if it has not.

    If the file that the diff was made for is unknown, one copy of the block is a double that is not
    in its own context; several copies are a habit of the file.  Where nothing moved, the copy must
    have all of its lines.  A short block must also stand below ``last``, the line where the last
    hunk ends: further up it would have moved the hunk, unless the file had it before.
    """
    there = _standing(fresh, text.lines, span) if fresh else []
    if text.made_for is None:
        around = text.lines[max(place.start - AROUND, 0) : place.stop + AROUND]
        if len(there) != 1 or set(fresh) <= set(around):
            return None
        copy = set(text.lines[there[0] : there[0] + span])
        since = len(set(fresh)) >= LONG or there[0] >= last
        if not text.moved and not (since and set(fresh) <= copy):
            return None
        near = AROUND if len(fresh) == 1 else len(text.lines)
    elif len(there) <= len(_standing(fresh, text.made_for, span)):
        return None
    else:
        anywhere = text.moved or _is_own(fresh, text)
        near = AROUND if len(fresh) == 1 else len(text.lines) if anywhere else NEAR
    at = min(there, key=lambda each: abs(each - place.start))
    first = place.start - (span - SPREAD) - near
    return f"line {at + 1}" if first <= at <= place.stop + near else None


def _elsewhere(
    fresh: Sequence[bytes], text: _Text, others: Sequence[_Text], span: int
) -> str | None:
    """Where another file of the diff has a distinctive block since the diff was made."""
    if not _is_own(fresh, text):
        return None
    for other in others:
        there = _standing(fresh, other.lines, span)
        if other.made_for is not None and len(there) > len(_standing(fresh, other.made_for, span)):
            return f"line {there[0] + 1} of {other.path}"
    return None


def _is_own(fresh: Sequence[bytes], text: _Text) -> bool:
    return sum(line not in (text.made_for or ()) for line in fresh) >= DISTINCTIVE


def _bare(scratch: Scratch, blob: str) -> list[bytes]:
    return [b"".join(line.split()) for line in diff.lines_of(scratch.read(blob))]


def _standing(wanted: Sequence[bytes], lines: Sequence[bytes], span: int) -> list[int]:
    """Where ``lines`` have enough of the wanted ones within ``span`` lines; none overlap."""
    needed = set(wanted)
    enough = len(needed) if len(needed) < DISTINCTIVE else ceil(SHARE * len(needed))
    found, end = list[int](), 0
    for at, line in enumerate(lines):
        if at >= end and line in needed and len(needed & set(lines[at : at + span])) >= enough:
            found.append(at)
            end = at + span
    return found
