"""What a diff changes, run by run, and where in a file a run belongs: no I/O.

A run is what git-patch-id(1) compares: lines taken away and those put in their place, without
blanks.  Twin functions have equal runs, so that a run is itself only at its own place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from builder.patches.alignment import LineMap, trivial, words
from builder.patches.diff import FileDiff

AROUND = 3
"""Lines on each side of a run that may tell its place, as many as a diff shows."""


@dataclass(frozen=True, slots=True)
class Run:
    """Lines side by side that a diff takes away ("-") and brings ("+"), without blanks.

    ``start`` is the place in the old file, from 0; ``preimage`` is git's name for that file.
    """

    path: str
    lines: tuple[bytes, ...]
    start: int
    above: tuple[bytes, ...]
    below: tuple[bytes, ...]
    preimage: str

    @property
    def removed(self) -> list[bytes]:
        """What it takes away."""
        return [line[1:] for line in self.lines if line[:1] == b"-"]

    @property
    def added(self) -> list[bytes]:
        """What it brings."""
        return [line[1:] for line in self.lines if line[:1] == b"+"]

    @property
    def stop(self) -> int:
        """The first line of the old file behind it."""
        return self.start + len(self.removed)

    def does(self, other: Run) -> bool:
        """Whether the lines are those of another run of the same file."""
        return (self.path, self.lines) == (other.path, other.lines)

    def reversed(self) -> Run:
        """What takes it back.  Its place is still counted in the file before it."""
        lines = [b"-" + line for line in self.added] + [b"+" + line for line in self.removed]
        return Run(self.path, tuple(lines), self.start, self.above, self.below, self.preimage)


def runs_of(files: Iterable[FileDiff]) -> list[Run]:
    """Every run of a diff, in its order."""
    return [run for file in files for run in _runs(file)]


def _runs(file: FileDiff) -> list[Run]:
    found = []
    for hunk in file.hunks:
        before = [bare(line) for line in hunk.before]
        lines: list[bytes] = []
        at = start = 0
        for line in (*hunk.lines, b" "):
            if line[:1] in {b"+", b"-"}:
                start = at if not lines else start
                lines.append(line[:1] + bare(line[1:]))
            elif lines:
                above, below = before[max(start - AROUND, 0) : start], before[at : at + AROUND]
                first = max(hunk.start - 1, 0) + start
                found.append(
                    Run(file.path, tuple(lines), first, (*above,), (*below,), file.preimage)
                )
                lines = []
            at += line[:1] != b"+"
    return found


def bare(line: bytes) -> bytes:
    """A line without blanks."""
    return b"".join(line.split())


def telling(runs: Iterable[Run]) -> bool:
    """Whether any line says what the change is."""
    return any(words([line[1:]]) for run in runs for line in run.lines)


def same_place(
    wanted: Run,
    found: Run,
    before: Sequence[bytes] | None,
    after: Sequence[bytes],
    where: LineMap | None,
) -> bool:
    """Whether a run that another commit did is where a wanted one belongs.

    ``before`` and ``after`` are the files that the two were made for, and ``where`` leads from
    one to the other.  Either the lines around the wanted run are now around the other, or both
    stand beside the same line, which is in either file only once.
    """
    if where is not None:
        spans = where.around(wanted.start, wanted.stop)
        if spans and spans[1].start <= found.start and found.stop <= spans[1].stop:
            return True
    once = {line for line in map(bare, after) if not trivial(line)}
    texts = [[bare(line) for line in lines] for lines in (before, after) if lines is not None]
    sides = ((wanted.above, found.above), (wanted.below, found.below))
    shared = {line for ours, theirs in sides for line in set(ours) & set(theirs)} & once
    return any(all(text.count(line) == 1 for text in texts) for line in shared)


def lacks(run: Run, part: Sequence[bytes], around: int) -> bool:
    """Whether the lines at the place of a run are those before it, not those that it brings.

    ``around`` is the number of lines of that place that belong to what stands around the run.
    """
    there = [bare(line) for line in part]
    fresh = [line for line in run.added if line not in run.removed and not trivial(line)]
    if any(line in there for line in fresh):
        return False
    if not run.removed:
        return len(there) <= around
    count = len(run.removed)
    return any(there[at : at + count] == run.removed for at in range(len(there) - count + 1))
