"""Hunks that do not fit a file: where they belong, and which lines differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from builder.patches import diff
from builder.patches.alignment import LEFT, LineMap, Place, likeliest, resemblance
from builder.patches.diff import FileDiff, Hunk
from builder.tools.git.scratch import Scratch

MOST_SHOWN = 20
"""Lines of one side of a conflict that are shown."""


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
    at: Place | None = None
    """The part of the file where the hunk belongs."""

    def __str__(self) -> str:
        where = f"{self.path}, hunk {self.hunk}" if self.hunk else self.path
        lines = [f"{where}: {self.why}"]
        for sign, side in (("-", self.expected), ("+", self.found)):
            lines += [f"  {sign} {line}" for line in side[:MOST_SHOWN]]
            if len(side) > MOST_SHOWN:
                lines.append(f"  {sign} ... {len(side) - MOST_SHOWN} more lines")
        return "\n".join(lines)


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
    before = original_of(scratch, tree, file, origin)
    found = []
    for number, hunk in enumerate(file.hunks, 1):
        fits = places(hunk.before, lines)
        if not fits:
            alike = places(
                *([line.rstrip(b"\n") for line in side] for side in (hunk.before, lines))
            )
            only_end = Place(alike[0], alike[0] + len(hunk.before)) if alike else None
            at = only_end or _place(hunk, lines, before)
            found.append(_mismatch(file.path, number, hunk, lines, at))
        elif why := _unplaced(hunk, fits, len(lines)):
            at = Place(fits[0], fits[0] + len(hunk.before))
            found.append(Conflict(file.path, number, why, at=at))
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


def original_of(
    scratch: Scratch, tree: str, file: FileDiff, origin: str
) -> tuple[list[bytes], LineMap] | None:
    """The file that a diff was made for, if known, and how it became the file of a tree."""
    now = scratch.entry(tree, file.old or "")
    blob = original_blob(scratch, file, origin)
    if now is None or blob is None:
        return None
    return diff.lines_of(scratch.read(blob)), LineMap(scratch.line_changes(blob, now.object))


def _place(
    hunk: Hunk, lines: list[bytes], original: tuple[list[bytes], LineMap] | None
) -> Place | None:
    """Where a hunk belongs: followed from the original file, else where lines are alike."""
    near, alike = followed(hunk, original), likeliest(hunk, lines)
    if original is None or near is not None:
        return near or alike
    before, where = original
    start = _start(hunk, before)
    if start is None:
        return alike
    # All of its lines were removed there: perhaps they moved together within the file.
    moved = alike is not None and resemblance(hunk, before, lines[alike.start : alike.stop]) >= 0.5
    return alike if moved else where.place(before, start, start + len(hunk.before))


def _start(hunk: Hunk, before: list[bytes]) -> int | None:
    """The index of the lines of a hunk in the file that it was made for."""
    starts = places(hunk.before, before)
    return min(starts, key=lambda at: abs(at - hunk.start + 1), default=None)


def followed(
    hunk: Hunk, original: tuple[list[bytes], LineMap] | None, least: float = LEFT
) -> Place | None:
    """Where the lines of a hunk are now, if more than ``least`` of them (0 to 1) are left."""
    if original is None:
        return None
    before, where = original
    start = _start(hunk, before)
    if start is None or where.left(before, start, start + len(hunk.before)) <= least:
        return None
    return where.place(before, start, start + len(hunk.before))


def _mismatch(path: str, number: int, hunk: Hunk, lines: list[bytes], at: Place | None) -> Conflict:
    """The hunk compared with the part of the file where it belongs."""
    if at is None:
        return Conflict(
            path,
            number,
            f"the file has no similar lines (it was at line {hunk.start})",
            tuple(_text(line) for line in hunk.removed or hunk.before),
        )
    actual = lines[at.start : at.stop]
    if _only_ends(hunk.before, actual):
        line = next((_text(each) for each in hunk.before if each not in actual), "")
        why = "the line ends differ (CRLF or LF)"
        if [each.rstrip(b"\n") for each in hunk.before] == [each.rstrip(b"\n") for each in actual]:
            ends = hunk.before[-1].endswith(b"\n")
            why = f"the file {'has no line feed at its end' if ends else 'goes on after this line'}"
        return Conflict(path, number, why, (line,), (), at)
    expected, found = _differing(hunk.before, actual)
    if sorted(expected) == sorted(found):
        why = f"its lines are in another order, from line {at.start + 1}"
        return Conflict(path, number, why, at=at)
    why = f"the lines differ, from line {at.start + 1}"
    return Conflict(path, number, why, expected, found, at)


def _differing(
    before: Sequence[bytes], actual: Sequence[bytes]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines that only one of two texts has, each in its order."""
    expected: list[str] = []
    found: list[str] = []
    for what, a, b, c, d in SequenceMatcher(None, before, actual, autojunk=False).get_opcodes():
        if what != "equal":
            expected += map(_text, before[a:b])
            found += map(_text, actual[c:d])
    return tuple(expected), tuple(found)


def _only_ends(expected: Sequence[bytes], actual: Sequence[bytes]) -> bool:
    return [line.rstrip(b"\r\n") for line in expected] == [line.rstrip(b"\r\n") for line in actual]
