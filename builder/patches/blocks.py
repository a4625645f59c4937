"""The changed blocks of a diff, and where in a file a block belongs: no I/O.

git-patch-id(1) compares blocks: adjacent removed and added lines, without white space.
Twin functions have equal blocks, so that a block is identified by its lines and its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from builder.patches.alignment import LineMap, trivial, words
from builder.patches.diff import ChangedLines, FileDiff

AROUND = 3
"""Lines on each side of a block that identify its place, as many as a diff shows."""
DISTINCTIVE = 3
"""The fewest telling lines that identify a change, so that they can be found or missed."""


@dataclass(frozen=True, slots=True)
class Block(ChangedLines):
    """Adjacent lines that a diff removes and adds, without white space.

    One that changes only white space keeps it.

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

    @property
    def fresh(self) -> list[bytes]:
        """The lines that it adds and does not remove, without blank ones and brackets."""
        return [line for line in self.added if line not in self.removed and not trivial(line)]

    @property
    def blank(self) -> bool:
        """Whether it changes only white space."""
        return without_blanks(b"".join(self.removed)) == without_blanks(b"".join(self.added))

    def equals(self, other: Block) -> bool:
        """Whether another block changes the same lines of the same file."""
        return (self.path, self.lines) == (other.path, other.lines)

    def reversed(self) -> Block:
        """Its revert.  Its place is still in the old file."""
        lines = [b"-" + line for line in self.added] + [b"+" + line for line in self.removed]
        return replace(self, lines=tuple(lines))


def blocks_of(files: Iterable[FileDiff]) -> list[Block]:
    """The blocks of a diff, in order, without blocks that change only white space.

    All of them if there are no others.
    """
    found = [block for file in files for block in _blocks(file)]
    return [block for block in found if not block.blank] or found


def _blocks(file: FileDiff) -> list[Block]:
    found = []
    for hunk in file.hunks:
        before = [without_blanks(line) for line in hunk.before]
        lines: list[bytes] = []
        at = start = 0
        for line in (*hunk.lines, b" "):
            if line[:1] in {b"+", b"-"}:
                start = at if not lines else start
                lines.append(line)
            elif lines:
                above, below = before[max(start - AROUND, 0) : start], before[at : at + AROUND]
                first = max(hunk.start - 1, 0) + start
                block = Block(tuple(lines), file.path, first, (*above,), (*below,), file.preimage)
                bare = tuple(line[:1] + without_blanks(line[1:]) for line in lines)
                found.append(block if block.blank else replace(block, lines=bare))
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
