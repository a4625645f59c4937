"""Hunks that do not fit a file: where they belong, and which lines differ."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from builder.sources import diff
from builder.sources.diff import FileDiff, Hunk
from builder.sources.scratch import Scratch

NAME = re.compile(rb"\w{3,}")
MOST_SHOWN = 20
"""Lines of one side of a conflict that are shown."""
SPREAD = 8
"""Lines that may have come between the lines of one hunk."""
SECTION = 150
"""Lines below its heading in which a hunk is expected."""
ENOUGH = 0.5
"""The least weight of a place: one line that occurs twice in the file has it."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A hunk (from 1; 0: the whole file) that does not fit, and the lines that differ."""

    path: str
    hunk: int
    why: str
    expected: tuple[str, ...] = ()
    """Lines that the hunk expects and the file lacks."""
    found: tuple[str, ...] = ()
    """The lines of the file in their place."""

    def __str__(self) -> str:
        where = f"{self.path}, hunk {self.hunk}" if self.hunk else self.path
        lines = [f"{where}: {self.why}"]
        for sign, side in (("-", self.expected), ("+", self.found)):
            lines += [f"  {sign} {line}" for line in side[:MOST_SHOWN]]
            if len(side) > MOST_SHOWN:
                lines.append(f"  {sign} ... {len(side) - MOST_SHOWN} more lines")
        return "\n".join(lines)


def trivial(line: bytes) -> bool:
    """Whether a line identifies no place: it is blank, or a bracket."""
    return NAME.search(line) is None


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "replace")


def file_lines(scratch: Scratch, tree: str, path: str | None) -> list[bytes] | None:
    """The lines of a file of a tree, None if there is none."""
    content = scratch.file(tree, path) if path else None
    return None if content is None else diff.lines_of(content)


def places(wanted: Sequence[bytes], lines: Sequence[bytes]) -> list[int]:
    """The indices (from 0) at which ``lines`` contain ``wanted``, line by line."""
    count = len(wanted)
    return [at for at in range(len(lines) - count + 1) if lines[at : at + count] == wanted]


def conflicts_of(scratch: Scratch, tree: str, file: FileDiff, origin: str) -> list[Conflict]:
    """The hunks of one file of a diff that do not fit a tree."""
    lines = file_lines(scratch, tree, file.old)
    if file.old is None:
        there = file_lines(scratch, tree, file.new) is not None
        return [Conflict(file.path, 0, "exists already, with other contents")] if there else []
    if lines is None:
        return [Conflict(file.old, 0, "does not exist")]
    if file.binary:
        entry = scratch.entry(tree, file.old)
        if file.preimage and entry and entry.object.startswith(file.preimage):
            return []
        return [Conflict(file.path, 0, "is another binary file than the patch was made for")]
    found = []
    for number, hunk in enumerate(file.hunks, 1):
        fits = places(hunk.before, lines)
        if not fits:
            alike = places(
                *([line.rstrip(b"\n") for line in side] for side in (hunk.before, lines))
            )
            where = range(alike[0], alike[0] + len(hunk.before)) if alike else None
            where = where or followed(scratch, tree, file, hunk, origin) or _likeliest(hunk, lines)
            where = where or followed(scratch, tree, file, hunk, origin, removed=True)
            found.append(_mismatch(file.path, number, hunk, lines, where))
        elif why := _unplaced(hunk, fits, len(lines)):
            found.append(Conflict(file.path, number, why))
    return found


def _unplaced(hunk: Hunk, fits: Sequence[int], count: int) -> str:
    """Why git does not apply a hunk in a place with its lines (apply.c, apply_one_fragment)."""
    if hunk.start <= 1 and 0 not in fits:
        return "the file has other lines before its first ones now"
    if hunk.lines[-1][:1] == b" " or fits[-1] + len(hunk.before) == count:
        return ""
    if hunk.lines[0][:1] == b" ":
        return "it ends with the file, which goes on after these lines now"
    return "git does not place lines without context: `git diff -U3` writes it"


def original_blob(scratch: Scratch, file: FileDiff, origin: str) -> str | None:
    """The blob that a diff was made for, if known: by its name, or from the tree ``origin``."""
    blob = scratch.blob_named(file.preimage) if file.preimage else None
    if blob is None and origin:
        item = scratch.entry(origin, file.old or "")
        blob = item.object if item else None
    return blob


def followed(
    scratch: Scratch, tree: str, file: FileDiff, hunk: Hunk, origin: str, *, removed: bool = False
) -> range | None:
    """Where the lines of a hunk are in a tree, by git's diff since the file it was made for.

    None if that file is unknown, or none of the telling lines is left; with ``removed`` the lines
    in the place of removed ones.
    """
    now, blob = scratch.entry(tree, file.old or ""), original_blob(scratch, file, origin)
    if now is None or blob is None:
        return None
    before = diff.lines_of(scratch.read(blob))
    starts = places(hunk.before, before)
    if not starts:
        return None
    start = min(starts, key=lambda at: abs(at - hunk.start + 1))
    votes, instead = defaultdict[int, float](float), None
    changes = [(0, 0, 0, 0), *scratch.line_changes(blob, now.object)]
    for old in range(start, start + len(hunk.before)):
        at, count, new, new_count = [each for each in changes if each[0] <= old][-1]
        if old < at + count:
            instead = instead or range(new, new + new_count)
        elif not trivial(before[old]):
            votes[start + new + new_count - at - count] += 1 / before.count(before[old])
    return _best(votes, hunk, 0.0) or (instead if removed else None)


def _likeliest(hunk: Hunk, lines: Sequence[bytes]) -> range | None:
    """The most likely place of a hunk in a file, by its rare lines and its heading; None: no clue.

    git-diff(1): "the hunk header mentions the name of the function to which the hunk applies".
    """
    there: dict[bytes, list[int]] = {}
    for at, line in enumerate(lines):
        there.setdefault(line.strip(), []).append(at)
    votes = defaultdict[int, float](float)
    for index, line in enumerate(hunk.before):
        found = [] if trivial(line) else there.get(line.strip(), [])
        for at in found:
            votes[at - index] += 1 / len(found)
    heading = hunk.heading.strip()
    headings = [at for at, line in enumerate(lines) if heading and line.startswith(heading)]
    for start in votes:
        if any(0 <= start - at <= SECTION for at in headings):
            votes[start] += 1 / len(headings)
    return _best(votes, hunk, ENOUGH)


def _best(votes: Mapping[int, float], hunk: Hunk, least: float) -> range | None:
    """The place with the most votes for its start, with lines that came between; None: too few."""
    start = max(votes, key=lambda at: (votes[at], -abs(at - hunk.start + 1)), default=None)
    if start is None or votes[start] < least or not votes[start]:
        return None
    near = [at for at in votes if abs(at - start) <= SPREAD and votes[at] >= ENOUGH] or [start]
    return range(max(min(near), 0), max(near) + len(hunk.before))


def _mismatch(
    path: str, number: int, hunk: Hunk, lines: list[bytes], where: range | None
) -> Conflict:
    if where is None:
        return Conflict(
            path,
            number,
            f"the file has no similar lines (it was at line {hunk.start})",
            tuple(_text(line) for line in hunk.removed or hunk.before),
        )
    actual = lines[where.start : where.stop]
    ends = [[line.rstrip(b"\r\n") for line in side] for side in (hunk.before, actual)]
    if ends[0] == ends[1]:
        line = next((_text(each) for each in hunk.before if each not in actual), "")
        why = "the line ends differ (CRLF or LF)"
        if [each.rstrip(b"\n") for each in hunk.before] == [each.rstrip(b"\n") for each in actual]:
            last = hunk.before[-1].endswith(b"\n")
            why = f"the file {'has no line feed at its end' if last else 'goes on after this line'}"
        return Conflict(path, number, why, (line,))
    expected, found = list[str](), list[str]()
    matcher = SequenceMatcher(None, hunk.before, actual, autojunk=False)
    for what, a, b, c, d in matcher.get_opcodes():
        if what != "equal":
            expected += map(_text, hunk.before[a:b])
            found += map(_text, actual[c:d])
    if sorted(expected) == sorted(found):
        why = f"its lines are in another order, from line {where.start + 1}"
        return Conflict(path, number, why)
    why = f"the lines differ, from line {where.start + 1}"
    return Conflict(path, number, why, tuple(expected), tuple(found))
