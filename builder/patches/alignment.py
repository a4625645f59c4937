"""Finds the place of a hunk that does not fit a file; no I/O.

If the file that the hunk was made for is known, its lines are followed from there.  Otherwise
three clues rank the places: lines of the hunk that are rare in the file, the heading of its section
(git-diff(1), "the hunk header mentions the name of the function to which the hunk applies"), and
its line number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from builder.patches.diff import Hunk

WORD = re.compile(rb"\w+")
GRAMMAR = frozenset(
    b"and auto bool case char const def do double else false float for from if import in int "
    b"is let new None not null nullptr NULL or pass return self size_t static struct true "
    b"True False this unsigned var void while with".split()
)
"""Keywords of programming languages, which any two lines may share."""
NAME = re.compile(rb"\w{3,}")
SECTION = 150
"""Lines below its heading in which a hunk is expected."""
SPREAD = 8
"""Lines that may have come between the lines of one hunk."""
LEFT = 0.3
"""The share of a hunk's lines that must be left to locate the hunk."""
ENOUGH = 0.5
"""The least weight of a place: one line that occurs twice in the file has it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The lines of a file, counted from 0, in the place of a hunk's lines."""

    start: int
    stop: int


class LineMap:
    """Maps the lines of one version of a file to another, counted from 0.

    ``changes`` come from ``Scratch.line_changes``: start and number of lines, old and new.
    """

    def __init__(self, changes: Sequence[tuple[int, int, int, int]]) -> None:
        self._changes = changes

    def line(self, old: int) -> int | None:
        """The new index of a line; None if it was removed."""
        shift = 0
        for start, count, new_start, new_count in self._changes:
            if old < start:
                break
            if old < start + count:
                return None
            shift = new_start + new_count - start - count
        return old + shift

    def place(self, before: Sequence[bytes], start: int, stop: int) -> Place:
        """The lines in the place of these lines of the old file, and any that came between them.

        If they are apart now, the rare ones decide.
        """
        kept = [(old, new) for old in range(start, stop) if (new := self.line(old)) is not None]
        distinctive = [pair for pair in kept if not trivial(before[pair[0]])] or kept
        if not distinctive:
            return self._instead(start, stop)
        near = [
            [p for p in distinctive if abs(_shift(p) - _shift(q)) <= SPREAD] for q in distinctive
        ]
        together = max(near, key=lambda pairs: sum(rarity(before, old) for old, _ in pairs))
        (first, new_first), (last, new_last) = together[0], together[-1]
        return Place(max(new_first - first + start, 0), new_last + stop - last)

    def around(self, start: int, stop: int) -> tuple[range, range] | None:
        """The old and the new lines between the nearest unchanged lines on either side.

        None if no line near by is unchanged, or if too many lines have come between them.
        """
        above = self._first_left(range(start - 1, start - 2 - SPREAD, -1))
        below = self._first_left(range(stop, stop + 1 + SPREAD))
        if above is None or below is None:
            return None
        (old_above, new_above), (old_below, new_below) = above, below
        if new_below - new_above - 1 > stop - start + 2 * SPREAD:
            return None
        return range(old_above + 1, old_below), range(new_above + 1, new_below)

    def _first_left(self, lines: range) -> tuple[int, int] | None:
        """The first of these old lines that is left, old and new; before and after the file too."""
        for old in lines:
            new = self.line(old)
            if new is not None:
                return old, new
        return None

    def left(self, before: Sequence[bytes], start: int, stop: int) -> float:
        """The share of these old lines that is left, weighted by rarity (0 to 1)."""
        weights = {old: rarity(before, old) for old in range(start, stop)}
        there = sum(weight for old, weight in weights.items() if self.line(old) is not None)
        return there / sum(weights.values()) if any(weights.values()) else 0.0

    def _instead(self, start: int, stop: int) -> Place:
        """The lines that replaced lines which were all removed."""
        old, _, new, count = self._change_of(start)
        first = new + min(start - old, count)
        old, removed, new, count = self._change_of(stop - 1)
        whole = old + removed <= stop
        return Place(first, max(first, new + (count if whole else min(stop - old, count))))

    def _change_of(self, old: int) -> tuple[int, int, int, int]:
        return next(each for each in self._changes if each[0] <= old < each[0] + each[1])


def _shift(pair: tuple[int, int]) -> int:
    return pair[1] - pair[0]


def rarity(lines: Sequence[bytes], at: int) -> float:
    """How well a line identifies its place: 1 if it is unique, 0 if it is trivial."""
    return 0.0 if trivial(lines[at]) else 1 / lines.count(lines[at])


def trivial(line: bytes) -> bool:
    """Whether a line identifies no place: it is blank, or a bracket."""
    return NAME.search(line) is None


def words(lines: Sequence[bytes]) -> set[bytes]:
    """The words and numbers of lines, without keywords; single letters only if nothing else."""
    found = {word for line in lines for word in WORD.findall(line)} - GRAMMAR
    return {word for word in found if len(word) > 1} or found


def likeliest(hunk: Hunk, lines: Sequence[bytes]) -> Place | None:
    """The most likely place of a hunk in a file; None if there is no clue."""
    places: dict[bytes, list[int]] = {}
    for at, line in enumerate(lines):
        places.setdefault(line.strip(), []).append(at)
    wanted = [line.strip() for line in hunk.before]
    headings = _headings(hunk.heading, lines)
    votes = _votes(wanted, places)
    own = hunk.start - 1
    if votes:
        scores = {start: _score(start, own, votes, headings) for start in votes}
        start = max(scores, key=lambda start: (scores[start], -abs(start - own)))
        if _weight(start, votes) >= ENOUGH or (headings and _below(start, headings)):
            return _exact(start, wanted, lines)
    if headings:
        under = [at for at in headings if at <= own] or headings[:1]
        start = own if own - under[-1] <= SECTION and own >= under[-1] else under[-1]
        return Place(min(start, len(lines)), min(start + len(wanted), len(lines)))
    return None


def resemblance(hunk: Hunk, before: Sequence[bytes], part: Sequence[bytes]) -> float:
    """The share of a hunk's lines in a part of a file, weighted by rarity (0 to 1)."""
    weights = {line: 1 / max(before.count(line), 1) for line in hunk.before if not trivial(line)}
    there = sum(weight for line, weight in weights.items() if line in part)
    return there / sum(weights.values()) if weights else 0.0


def _headings(heading: bytes, lines: Sequence[bytes]) -> list[int]:
    text = heading.strip()
    return [at for at, line in enumerate(lines) if text and line.strip().startswith(text)]


def _votes(wanted: Sequence[bytes], places: dict[bytes, list[int]]) -> dict[int, dict[int, float]]:
    """The starts that lines of the hunk suggest: the weight of each line, by its index."""
    votes: dict[int, dict[int, float]] = {}
    for index, line in enumerate(wanted):
        there = places.get(line, [])
        if trivial(line) or not there:
            continue
        for at in there[:50]:
            votes.setdefault(at - index, {})[index] = 1 / len(there)
    return votes


def _weight(start: int, votes: dict[int, dict[int, float]]) -> float:
    """The weight of a start: lines exactly there count in full, a few lines away half."""
    found: dict[int, float] = {}
    for near in range(start - SPREAD, start + SPREAD + 1):
        for index, weight in votes.get(near, {}).items():
            found[index] = max(found.get(index, 0.0), weight if near == start else weight / 2)
    return sum(found.values())


def _below(start: int, headings: Sequence[int]) -> bool:
    return any(0 <= start - at <= SECTION for at in headings)


def _score(
    start: int, own: int, votes: dict[int, dict[int, float]], headings: Sequence[int]
) -> float:
    heading = 1 / len(headings) if headings and _below(start, headings) else 0.0
    near = 0.5 / (1 + abs(start - own) / SPREAD)
    return _weight(start, votes) + heading + near


def _exact(start: int, wanted: Sequence[bytes], lines: Sequence[bytes]) -> Place:
    """The lines from a start to the last line that equals a line of the hunk."""
    begin = max(start, 0)
    part = [line.strip() for line in lines[begin : begin + len(wanted) + SPREAD]]
    end = begin + len(wanted)
    for block in SequenceMatcher(None, wanted, part, autojunk=False).get_matching_blocks():
        last = block.size - 1
        if block.size and not trivial(wanted[block.a + last]):
            end = begin + block.b + last + len(wanted) - block.a - last
    return Place(begin, min(max(end, begin), len(lines)))
