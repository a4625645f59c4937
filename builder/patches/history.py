"""Whether the history of a target contains a patch, and which commits changed its lines.

Ancestry decides first; then commits with the same blocks, one by one, merged or combined, as in
git-patch-id(1); then reverts, which have the blocks reversed or say so.  Only commits since the
merge base that touch the files of the patch are read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from builder.patches.alignment import LineMap, trivial
from builder.patches.blocks import (
    DISTINCTIVE,
    Block,
    blocks_of,
    is_distinctive,
    same_place,
    without_blanks,
)
from builder.patches.commits import (
    MERGES,
    MOST_COMMITS,
    CommitsSince,
    PatchedCommit,
    parsed,
    paths_of,
)
from builder.patches.conflicts import Conflict
from builder.patches.diff import FileDiff
from builder.patches.ranges import Piece


class History(CommitsSince):
    """Whether a target contains a patch, and which commits changed the lines that it expects."""

    # Whether the target contains the patch

    def contains(self, piece: Piece) -> str | None:
        """The commit that merged the commits of a patch; None if the target lacks them."""
        if not piece.head or self._scratch.missing([piece.head]):
            return None
        if not self._scratch.is_ancestor(piece.head, self._until):
            return None
        return self._merge_of(piece.head)

    def _merge_of(self, commit: str) -> str:
        return self._scratch.merge_of(commit, self._until) or commit

    def introduced_by(self, piece: Piece, files: Sequence[FileDiff]) -> str | None:
        """The commit that introduced a patch to the target; None if none was found."""
        by = self.contains(piece)
        wanted = blocks_of(files)
        if by or not is_distinctive(wanted):
            return by
        paths = paths_of(files)
        commits = self._since(piece, paths)
        changes = self._changes(commits, paths)
        by = self._first(commits, changes, wanted)
        if by is None:
            merges = self._since(piece, paths, *MERGES)
            by = self._first(merges, self._changes(merges, paths), wanted)
        by = by or self._combined(commits, changes, wanted, paths)
        return self._merge_of(by) if by else None

    def _first(
        self,
        commits: Sequence[PatchedCommit],
        changes: Mapping[str, list[Block]],
        wanted: Sequence[Block],
    ) -> str | None:
        """The first commit with all wanted blocks, in their place, else the last of several.

        Of several, none counts whose own block was reverted: upstream has only a part then.
        """
        for commit in commits:
            if self._does(changes[commit.name], wanted):
                return commit.name
        last = -1
        for block in wanted:
            by = (n for n, each in enumerate(commits) if self._does(changes[each.name], [block]))
            kept = (
                n for n in by if self._reverted_by(commits[n], {commits[n].name}, [block]) is None
            )
            at = next(kept, None)
            if at is None:
                return None
            last = max(last, at)
        return commits[last].name

    def _combined(
        self,
        commits: Sequence[PatchedCommit],
        changes: Mapping[str, list[Block]],
        wanted: Sequence[Block],
        paths: Sequence[str],
    ) -> str | None:
        """The last of several commits that have all wanted blocks together.

        The lines that only one commit changes in this way tell the first and the last.
        """
        lines = Counter(line for each in commits for line in {*_signed(changes[each.name])})
        telling = {line for line in _signed(wanted) if lines[line] == 1}
        of = [each for each in commits if not telling.isdisjoint(_signed(changes[each.name]))]
        if len(of) < 2 or not of[0].parent:
            return None
        if not self._scratch.is_ancestor(of[0].name, of[-1].name):
            return None
        text = self._scratch.diffs_of([(of[-1].name, of[0].parent)], paths)
        blocks = blocks_of(parsed(text.get(of[-1].name, b"")))
        return of[-1].name if self._does(blocks, wanted) else None

    def _does(self, blocks: Sequence[Block], wanted: Sequence[Block]) -> bool:
        """Whether a commit makes all wanted changes, in their place."""
        left = list(blocks)
        for block in wanted:
            equal = (each for each in left if each.equals(block))
            found = next((each for each in equal if self._at_one_place(block, each)), None)
            if found is None:
                return False
            left.remove(found)
        return True

    def _at_one_place(self, wanted: Block, found: Block) -> bool:
        if wanted.preimage == found.preimage and wanted.start == found.start:
            return True
        after = self._scratch.blob_named(found.preimage)
        if after is None:
            return not found.preimage.strip("0")  # a new file has only one place
        before = self._scratch.blob_named(wanted.preimage) if wanted.preimage else None
        return same_place(
            wanted,
            found,
            self._lines(before) if before else None,
            self._lines(after),
            LineMap(self._scratch.line_changes(before, after)) if before else None,
        )

    def why_missing(
        self,
        by: str,
        piece: Piece,
        ways: Sequence[Sequence[FileDiff]],
        tree: str,
        *,
        fits: bool,
    ) -> str | None:
        """Why ``tree``, the target's, lacks a change that ``by`` introduced; None if it has it.

        A revert removes it, an older version of the file, or later work; a merge that keeps the
        other side (``-s ours``) never has it.  ``ways`` are the diff with the names of its files,
        then with today's names if they differ; ``fits`` says whether it applies to ``tree``.
        """
        wholes = [self._merged(by, paths_of(files)) for files in ways]
        for files, whole in zip(ways, wholes, strict=True):
            back = self._reverted_by(whole, {by, piece.head}, blocks_of(files))
            if back is not None:
                return f"upstream introduced it with {self.name(by)}, and reverted it with {back}"
        ours = not any(whole.blobs for whole in wholes) and any(
            self._blob(by, path) for files in ways for path in paths_of(files)
        )  # a merge that keeps its first parent's files, which may have the change
        few = DISTINCTIVE if self.contains(piece) and not (fits or ours) else 0
        if self._is_lost(piece, ways[-1], [by] if ours else [by, tree], few):
            return f"upstream introduced it with {self.name(by)}, but the tree lacks its lines"
        return None

    def _reverted_by(
        self, whole: PatchedCommit, names: Iterable[str], blocks: Sequence[Block]
    ) -> str | None:
        """The commit that reverted blocks after ``whole`` introduced them; None: they are there.

        ``names`` are the commits that a message may name as reverted.  Reverts of reverts restore
        the blocks: the last one counts.
        """
        by, paths = whole.name, sorted({block.path for block in blocks})
        commits = self._commits(by, paths)
        changes = self._changes([*commits, whole], paths)
        # Changes that were merged together may be reverted together.
        forth = [[b for b in each if not b.blank] for each in (blocks, changes[by])]
        back = [[block.reversed() for block in blocks] for blocks in forth]
        introduced, reverted, last = {*names}, set[str](), None
        for commit in commits:
            named, wanted = (reverted, forth) if last else (introduced, back)
            inverse = any(self._equal(changes[commit.name], each) for each in wanted if each)
            if _reverts(commit.message, named) or inverse:
                (introduced if last else reverted).add(commit.name)
                last = None if last else commit.name
        return self.name(last) if last else None

    def _equal(self, blocks: Sequence[Block], wanted: Sequence[Block]) -> bool:
        """Whether a commit makes exactly the wanted changes: one with more is later work."""
        return len(blocks) == len(wanted) and self._does(blocks, wanted)

    def _is_lost(
        self, piece: Piece, files: Sequence[FileDiff], trees: Sequence[str], few: int
    ) -> bool:
        """Whether the last tree lacks most of a change, and has no other lines in its place.

        The first tree belongs to the commit with the change: if it lacks the lines, it never had
        them.  Lines that later work rewrites or moves count as there; so do fewer than ``few``
        telling lines that it removes, and lines that its own branch removed before the merge.
        """
        blocks = [block for block in blocks_of(files) if not block.blank]
        before = {block.path: self._original(block, piece) for block in blocks}
        old = {path: self._bare_lines(blob) for path, blob in before.items()}
        now = {path: self._bare(trees[-1], path) for path in before}
        removed = {(block.path, line) for block in blocks for line in block.removed}
        added = {(block.path, line) for block in blocks for line in block.fresh} - removed
        own = {(path, line) for path, line in added if line not in old[path]}
        if 2 * sum(line in now[path] for path, line in own) >= len(own) > 0:
            return False
        if own and len(trees) == 1:
            return True
        by = {path: self._bare(trees[0], path) for path in before}
        if len(own) < few or 2 * sum(line in by[path] for path, line in own) < len(own):
            blocks = [block for block in blocks if block.removed]
        back = [each for each in blocks if self._is_back(each, before[each.path], trees)]
        return 2 * sum(len(each.lines) for each in back) > sum(len(each.lines) for each in blocks)

    def _is_back(self, block: Block, before: str, trees: Sequence[str]) -> bool:
        """Whether the place of a block is in the last tree as in the blob that it was made for.

        A new file has no place: nothing of it is there.
        """
        blobs = [self._blob(tree, block.path) for tree in trees]
        if not before or not blobs[-1]:
            return True
        start, stop, around, added = block.start, block.stop, 0, 0
        for old, new in pairwise([before, *filter(None, blobs)]):
            spans = LineMap(self._scratch.line_changes(old, new)).around(start, stop)
            if spans is None:
                return False
            start, stop = spans[1].start, spans[1].stop
            around, added = len(spans[0]) - added, len(block.added)
        part = [without_blanks(line) for line in self._lines(blobs[-1])[start:stop]]
        if not block.removed:
            return len(part) <= around
        count = len(block.removed)
        same = (part[at : at + count] == block.removed for at in range(len(part) - count + 1))
        return any(same) and not any(line in part for line in block.fresh)

    def _original(self, block: Block, piece: Piece) -> str:
        """The blob that a block was made for, else the merge base's; empty if unknown."""
        if block.preimage and not block.preimage.strip("0"):
            return ""
        blob = self._scratch.blob_named(block.preimage) if block.preimage else None
        base = self.merge_base(piece)
        return blob or (self._blob(base, block.path) if base else "")

    def _bare(self, commit: str, path: str) -> set[bytes]:
        return self._bare_lines(self._blob(commit, path))

    def _bare_lines(self, blob: str) -> set[bytes]:
        return {without_blanks(line) for line in self._lines(blob)} if blob else set()

    # Which commits changed lines

    def introducing_commits(self, piece: Piece, files: Sequence[FileDiff]) -> list[str]:
        """The commit that introduced most lines of a diff, which the target contains."""
        paths, wanted = paths_of(files), _signed(blocks_of(files))
        commits = self._since(piece, paths)
        changes = self._changes(commits, paths)
        shares = {each.name: len(wanted & _signed(changes[each.name])) for each in commits}
        best = max(shares, key=lambda name: shares[name], default="")
        return [self.name(best)] if best and shares[best] else []

    def changing_commits(self, conflicts: Iterable[Conflict], tree: str, piece: Piece) -> list[str]:
        """The commits that changed the lines that a patch expects, newest first.

        ``tree`` is the target's.
        """
        names: dict[str, None] = {}
        for conflict in conflicts:
            if not conflict.hunk:
                names |= dict.fromkeys(self.removers(conflict.path, piece))
                continue
            changing = self._changing(conflict, tree, piece)
            names |= dict.fromkeys(self.name(each.name) for each in changing)
        return list(names)[:MOST_COMMITS]

    def _changing(self, conflict: Conflict, tree: str, piece: Piece) -> list[PatchedCommit]:
        """The commits, newest first, that removed the expected lines, or later versions of them.

        If there are none, the commits that added the lines that were found instead.
        """
        path = conflict.path
        commits = self._since(piece, [path])
        changes = self._changes(commits, [path])
        expected, found = _bare(conflict.expected), _bare(conflict.found)
        wanted = (expected - self._bare(tree, path)) or expected
        by: list[PatchedCommit] = []
        for each in commits:
            blocks = [b for b in changes[each.name] if not wanted.isdisjoint(b.removed)]
            if blocks:
                by.insert(0, each)
                wanted |= {line for block in blocks for line in block.added}
        if not by:
            added = {
                each.name: {x for b in changes[each.name] for x in b.added} for each in commits
            }
            by = [each for each in reversed(commits) if not found.isdisjoint(added[each.name])]
        return by[:MOST_COMMITS]


def _signed(blocks: Iterable[Block]) -> set[tuple[str, bytes]]:
    """The telling lines of blocks, by path, after "-" or "+"."""
    return {(each.path, line) for each in blocks for line in each.lines if not trivial(line[1:])}


def _reverts(message: str, commits: Iterable[str]) -> bool:
    """Whether a message says, as git-revert(1) writes it, that one of these is reverted."""
    named = re.findall(r"This reverts commit ([0-9a-f]{7,40})", message)
    return any(commit.startswith(short) for short in named for commit in commits)


def _bare(lines: Iterable[str]) -> set[bytes]:
    """The telling lines of a text, without white space."""
    return {without_blanks(line.encode()) for line in lines if not trivial(line.encode())}
