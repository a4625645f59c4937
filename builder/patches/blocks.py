"""The changed blocks of a diff, and where in a file a block belongs: no I/O.

A block is what git-patch-id(1) compares: adjacent removed and added lines, without white space.
Twin functions have equal blocks, so that a block is identified by its lines and its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from builder.patches.alignment import LineMap, trivial, words
from builder.patches.diff import ChangedLines, FileDiff

AROUND = 3
"""Lines on each side of a block that identify its place, as many as a diff shows."""


@dataclass(frozen=True, slots=True)
class Block(ChangedLines):
    """Adjacent lines that a diff removes and adds, without white space.

    ``start`` is the line of the old file, from 0; ``preimage`` is the blob of that file.
    """

    path: str
    start: int
    above: tuple[bytes, ...]
    below: tuple[bytes, ...]
    preimage: str

    @property
    def stop(self) -> int:
        """The line of the old file after it."""
        return self.start + len(self.removed)

    def equals(self, other: Block) -> bool:
        """Whether another block changes the same lines of the same file."""
        return (self.path, self.lines) == (other.path, other.lines)

    def reversed(self) -> Block:
        """Its revert.  The place is still that in the old file."""
        lines = [b"-" + line for line in self.added] + [b"+" + line for line in self.removed]
        return Block(tuple(lines), self.path, self.start, self.above, self.below, self.preimage)


def blocks_of(files: Iterable[FileDiff]) -> list[Block]:
    """The blocks of a diff, in order."""
    return [block for file in files for block in _blocks(file)]


def _blocks(file: FileDiff) -> list[Block]:
    found = []
    for hunk in file.hunks:
        before = [without_blanks(line) for line in hunk.before]
        lines: list[bytes] = []
        at = start = 0
        for line in (*hunk.lines, b" "):
            if line[:1] in {b"+", b"-"}:
                start = at if not lines else start
                lines.append(line[:1] + without_blanks(line[1:]))
            elif lines:
                above, below = before[max(start - AROUND, 0) : start], before[at : at + AROUND]
                first = max(hunk.start - 1, 0) + start
                found.append(
                    Block(tuple(lines), file.path, first, (*above,), (*below,), file.preimage)
                )
                lines = []
            at += line[:1] != b"+"
    return found


def without_blanks(line: bytes) -> bytes:
    """A line without white space."""
    return b"".join(line.split())


def is_distinctive(blocks: Iterable[Block]) -> bool:
    """Whether any line has words that identify the change."""
    return any(words([line[1:]]) for block in blocks for line in block.lines)


def same_place(
    wanted: Block,
    found: Block,
    before: Sequence[bytes] | None,
    after: Sequence[bytes],
    where: LineMap | None,
) -> bool:
    """Whether the block of another commit is where a wanted one belongs.

    ``before`` and ``after`` are the files that the two were made for, and ``where`` maps one to
    the other.  Either the lines around the wanted block are now around the other, or both are
    next to the same line, which occurs only once in either file.
    """
    if where is not None:
        spans = where.around(wanted.start, wanted.stop)
        if spans and spans[1].start <= found.start and found.stop <= spans[1].stop:
            return True
    once = {line for line in map(without_blanks, after) if not trivial(line)}
    texts = [[*map(without_blanks, lines)] for lines in (before, after) if lines is not None]
    sides = ((wanted.above, found.above), (wanted.below, found.below))
    shared = {line for ours, theirs in sides for line in set(ours) & set(theirs)} & once
    return any(all(text.count(line) == 1 for text in texts) for line in shared)


def is_unapplied(block: Block, part: Sequence[bytes], around: int) -> bool:
    """Whether the lines at the place of a block are its old ones, not those that it adds.

    ``around`` is the number of lines of that place that surround the block.
    """
    there = [without_blanks(line) for line in part]
    fresh = [line for line in block.added if line not in block.removed and not trivial(line)]
    if any(line in there for line in fresh):
        return False
    if not block.removed:
        return len(there) <= around
    count = len(block.removed)
    return any(there[at : at + count] == block.removed for at in range(len(there) - count + 1))
