"""Where in a file a hunk belongs that does not fit there: no I/O.

With the file that the hunk was made for, its lines are followed from there.  Without it, three
things speak for a place: lines of the hunk that are rare in the file, the heading of its section
(git-diff(1), "the hunk header mentions the name of the function to which the hunk applies"), and
the line number that it names.
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
"""Words of programming languages, which any two lines may share."""
NAME = re.compile(rb"\w{3,}")
SECTION = 150
"""Lines below its heading in which a hunk is expected."""
SPREAD = 8
"""Lines that those of one hunk may have moved apart."""
LEFT = 0.3
"""The share of a hunk's lines that must be left for the hunk to be where they are."""
ENOUGH = 0.5
"""Weight of a place that is no chance: one line that stands twice in the file."""


@dataclass(frozen=True, slots=True)
class Place:
    """Lines of a file, counted from 0, that stand where those of a hunk did."""

    start: int
    stop: int


class LineMap:
    """Where the lines of one version of a file are in another, counted from 0.

    ``changes`` are those of ``Scratch.line_changes``: start and number of lines, old and new.
    """

    def __init__(self, changes: Sequence[tuple[int, int, int, int]]) -> None:
        self._changes = changes

    def line(self, old: int) -> int | None:
        """The new place of a line; None where it went."""
        shift = 0
        for start, count, new_start, new_count in self._changes:
            if old < start:
                break
            if old < start + count:
                return None
            shift = new_start + new_count - start - count
        return old + shift

    def place(self, before: Sequence[bytes], start: int, stop: int) -> Place:
        """What stands where these lines of the old file did, with what came between them.

        Where they are apart now, those that were rare decide.
        """
        kept = [(old, new) for old in range(start, stop) if (new := self.line(old)) is not None]
        telling = [pair for pair in kept if not trivial(before[pair[0]])] or kept
        if not telling:
            return self._instead(start, stop)
        near = [[p for p in telling if abs(_shift(p) - _shift(q)) <= SPREAD] for q in telling]
        together = max(near, key=lambda pairs: sum(rarity(before, old) for old, _ in pairs))
        (first, new_first), (last, new_last) = together[0], together[-1]
        return Place(max(new_first - first + start, 0), new_last + stop - last)

    def around(self, start: int, stop: int) -> tuple[range, range] | None:
        """The old lines and the new ones between the nearest that are left on either side.

        None where none is left near by, or where too much has come between them.
        """
        above = next(
            (old for old in range(start - 1, start - 2 - SPREAD, -1) if self._is(old)), None
        )
        below = next((old for old in range(stop, stop + 1 + SPREAD) if self._is(old)), None)
        if above is None or below is None:
            return None
        first, last = self.line(above), self.line(below)
        assert first is not None
        assert last is not None
        if last - first - 1 > stop - start + 2 * SPREAD:
            return None
        return range(above + 1, below), range(first + 1, last)

    def _is(self, old: int) -> bool:
        """Whether an old line is left; the one before the first, and that behind the last, are."""
        return self.line(old) is not None

    def left(self, before: Sequence[bytes], start: int, stop: int) -> float:
        """How much of these old lines is still there, by how rare they were (0 to 1)."""
        weights = {old: rarity(before, old) for old in range(start, stop)}
        there = sum(weight for old, weight in weights.items() if self.line(old) is not None)
        return there / sum(weights.values()) if any(weights.values()) else 0.0

    def instead(self, old: int) -> range:
        """The new lines that were put in the place of an old one that went, and of those around."""
        _, _, new, count = self._change_of(old)
        return range(new, new + count)

    def _instead(self, start: int, stop: int) -> Place:
        """What was put in the place of lines that all went."""
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
    """How much a line says of where it is: 1 where no other is like it, 0 where it is trivial."""
    return 0.0 if trivial(lines[at]) else 1 / lines.count(lines[at])


def trivial(line: bytes) -> bool:
    """Whether a line says nothing of where it stands: blank, or a bracket."""
    return NAME.search(line) is None


def words(lines: Sequence[bytes]) -> set[bytes]:
    """The words and numbers of lines, without those of the language; one letter if need be."""
    found = {word for line in lines for word in WORD.findall(line)} - GRAMMAR
    return {word for word in found if len(word) > 1} or found


def likeliest(hunk: Hunk, lines: Sequence[bytes]) -> Place | None:
    """The part of a file that a hunk is for; None where nothing speaks for any."""
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
    """The share of a hunk's lines that a part of a file has, by how rare they were (0 to 1)."""
    weights = {line: 1 / max(before.count(line), 1) for line in hunk.before if not trivial(line)}
    there = sum(weight for line, weight in weights.items() if line in part)
    return there / sum(weights.values()) if weights else 0.0


def _headings(heading: bytes, lines: Sequence[bytes]) -> list[int]:
    text = heading.strip()
    return [at for at, line in enumerate(lines) if text and line.strip().startswith(text)]


def _votes(wanted: Sequence[bytes], places: dict[bytes, list[int]]) -> dict[int, dict[int, float]]:
    """Starts that lines of the hunk speak for: the weight of each line, by its index."""
    votes: dict[int, dict[int, float]] = {}
    for index, line in enumerate(wanted):
        there = places.get(line, [])
        if trivial(line) or not there:
            continue
        for at in there[:50]:
            votes.setdefault(at - index, {})[index] = 1 / len(there)
    return votes


def _weight(start: int, votes: dict[int, dict[int, float]]) -> float:
    """How much speaks for a start: exactly there whole, a few lines away half."""
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
    """The lines from a start on, up to the last one that is like the hunk's."""
    begin = max(start, 0)
    part = [line.strip() for line in lines[begin : begin + len(wanted) + SPREAD]]
    end = begin + len(wanted)
    for block in SequenceMatcher(None, wanted, part, autojunk=False).get_matching_blocks():
        last = block.size - 1
        if block.size and not trivial(wanted[block.a + last]):
            end = begin + block.b + last + len(wanted) - block.a - last
    return Place(begin, min(max(end, begin), len(lines)))
