"""Whether the history of a target contains a patch, and which commits changed its lines.

Ancestry comes first, which needs no contents of files; then commits with the same change, such as
squash merges and cherry-picks; then the lines themselves.  Only commits since the merge base that
touch the files of the patch are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from builder.patches import diff as diffs
from builder.patches.alignment import LineMap, trivial
from builder.patches.blocks import Block, blocks_of, is_distinctive, is_unapplied, same_place
from builder.patches.commits import MOST_COMMITS, MOST_VERSIONS, NAMED, CommitsSince, paths_of
from builder.patches.conflicts import Conflict, places
from builder.patches.diff import FileDiff
from builder.patches.ranges import Piece

MOST_STEPS = 20
"""Commits of a pull request that are searched for one by one."""


@dataclass(frozen=True, slots=True)
class Touch:
    """A commit that changed some lines: its name for display, the removed and the added lines."""

    commit: str
    name: str
    removed: frozenset[str]
    added: frozenset[str]


class History(CommitsSince):
    """Whether a target contains a patch, and which commits changed the lines that it expects."""

    # Whether the target contains the patch

    def introduced_by(
        self, piece: Piece, files: Sequence[FileDiff], *, thorough: bool
    ) -> str | None:
        """The commit that introduced a patch to the target; None if none was found.

        Unless ``thorough``, only commits that refer to the patch are compared with it: by its
        number, its subject, or its author and time.
        """
        if piece.head and self._has(piece.head):
            return self._scratch.merge_of(piece.head, self._until) or piece.head
        since = self.merge_base(piece)
        if since is None or since == self._until:
            return None
        whole = blocks_of(files)
        if not is_distinctive(whole):
            return None
        candidates = self._candidates(piece, files, since, thorough=thorough)
        theirs = self._changes(candidates, paths_of(files), self._url)
        steps = self._steps(piece, files) or [whole]
        for wanted in ([whole], steps):
            by = [self._first(candidates, theirs, step) for step in wanted]
            if all(by):
                return max((each for each in by if each), key=candidates.index)
        return None

    def _has(self, commit: str) -> bool:
        known = not self._scratch.missing([commit])
        return known and self._scratch.is_ancestor(commit, self._until)

    def _candidates(
        self, piece: Piece, files: Sequence[FileDiff], since: str, *, thorough: bool
    ) -> list[str]:
        """Commits that may contain the same change, oldest first."""
        listing = self._log(
            *("--reverse", "--no-merges", "--format=%x00%H%x01%an%at%x01%s%x01%B", since, "--"),
            *paths_of(files),
        )
        rows = [row.split("\x01") for row in listing.split("\0")[1:]]
        if thorough:
            return [row[0] for row in rows[:MOST_VERSIONS]]
        hints = self._hints(piece)
        return [
            commit
            for commit, author, subject, message in rows
            if not hints.isdisjoint({author, subject, *re.findall(r"#\d+|[0-9a-f]{40}", message)})
        ][:MOST_VERSIONS]

    def _hints(self, piece: Piece) -> set[str]:
        hints = {f"#{piece.pull}"} if piece.pull else set()
        if piece.head:
            listing = self._scratch.text(
                "log", "--format=%H%x01%an%at%x01%s", f"{piece.base}..{piece.head}"
            )
            hints |= {part for line in listing.splitlines() for part in line.split("\x01")}
        return hints

    def _steps(self, piece: Piece, files: Sequence[FileDiff]) -> list[list[Block]]:
        """The blocks of each commit of a pull request, for a target with the rebased commits."""
        if not piece.pull:
            return []
        span = f"{piece.base}..{piece.head}"
        commits = self._scratch.text("rev-list", "--reverse", "--no-merges", span).split()
        if not 1 < len(commits) <= MOST_STEPS:
            return []
        found = self._changes(commits, paths_of(files), piece.url)
        return [blocks for blocks in found.values() if blocks]

    def _first(
        self, commits: Sequence[str], changes: dict[str, list[Block]], wanted: Sequence[Block]
    ) -> str | None:
        """The first commit that makes all wanted changes, in their place."""
        return next((each for each in commits if self._does(changes.get(each, []), wanted)), None)

    def _does(self, blocks: Sequence[Block], wanted: Sequence[Block]) -> bool:
        left = list(blocks)
        for block in wanted:
            equal = (each for each in left if each.equals(block))
            found = next((each for each in equal if self._at_one_place(block, each)), None)
            if found is None:
                return False
            left.remove(found)
        return True

    def _at_one_place(self, wanted: Block, found: Block) -> bool:
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

    def reverted_by(self, by: str, piece: Piece, files: Sequence[FileDiff]) -> str | None:
        """The commit that reverted a change after ``by`` introduced it; None if it is in effect.

        Reverts of reverts restore it: the last one counts.
        """
        listing = self._log(
            *("--reverse", "--topo-order", "--no-merges", "--format=%x00%H%x01%B", by, "--"),
            *paths_of(files),
        )
        rows = [row.split("\x01") for row in listing.split("\0")[1:]]
        changes = self._changes(
            [row[0] for row in rows[:MOST_VERSIONS]], paths_of(files), self._url
        )
        forth = blocks_of(files)
        back = [block.reversed() for block in forth]
        introduced, reverted, last = {by, piece.head}, set[str](), None
        for commit, message in rows:
            named, wanted = (reverted, forth) if last else (introduced, back)
            if _reverts(message, named) or (wanted and self._does(changes.get(commit, []), wanted)):
                (introduced if last else reverted).add(commit)
                last = None if last else commit
        return self.name(last) if last else None

    def why_missing(
        self, by: str, piece: Piece, files: Sequence[FileDiff], tree: str
    ) -> str | None:
        """Why ``tree``, the target's, lacks a change that ``by`` introduced; None if it has it.

        A revert removes it, or an older version of the file; a merge that keeps the other side
        (``-s ours``) never has it.
        """
        back = self.reverted_by(by, piece, files)
        if back is not None:
            return f"upstream introduced it with {self.name(by)}, and reverted it with {back}"
        if any(self._lost(block, by, tree) for block in blocks_of(files)):
            return f"upstream introduced it with {self.name(by)}, but the tree lacks its lines"
        return None

    def _lost(self, block: Block, by: str, tree: str) -> bool:
        """Whether the old lines of a block are at its place, in ``by`` or since."""
        start, stop, added = block.start, block.stop, 0
        versions = (block.preimage, self._blob(by, block.path), self._blob(tree, block.path))
        blobs = [self._scratch.blob_named(name) if name.strip("0") else None for name in versions]
        for old, new in pairwise(blobs):
            if old is None or new is None:
                return False
            spans = LineMap(self._scratch.line_changes(old, new)).around(start, stop)
            if spans is None:
                return False
            before, after = spans
            part = self._lines(new)[after.start : after.stop]
            if is_unapplied(block, part, len(before) - added):
                return True
            start, stop, added = after.start, after.stop, len(block.added)
        return False

    # Which commits changed lines

    def introducing_commits(self, piece: Piece, files: Sequence[FileDiff], tree: str) -> list[str]:
        """The commit that introduced the lines of a diff, which ``tree`` contains."""
        best: tuple[int, str] = (0, "")
        for file in files:
            lines = diffs.lines_of(self._scratch.file(tree, file.new or "") or b"")
            for hunk in file.hunks:
                starts = places(hunk.after, lines) if hunk.after else []
                if not starts:
                    continue
                start = min(starts, key=lambda at: abs(at - hunk.start + 1))
                added, removed = _texts(hunk.added), _texts(hunk.removed)
                for touch in self.touches(file.path, tree, start, start + len(hunk.after), piece):
                    count = len(touch.added & added) if added else len(touch.removed & removed)
                    if count > best[0]:
                        best = (count, touch.name)
            if file.new is None:
                best = max(best, *((1, name) for name in self.removers(file.path, piece)[:1]))
        return [best[1]] if best[0] else []

    def changing_commits(self, conflicts: Iterable[Conflict], tree: str, piece: Piece) -> list[str]:
        """The commits that changed the lines that a patch expects, newest first."""
        names: dict[str, None] = {}
        for conflict in conflicts:
            if conflict.at is None or not conflict.hunk:
                names |= dict.fromkeys(self.removers(conflict.path, piece))
                continue
            start, stop = conflict.at.start, conflict.at.stop
            expected, found = set(conflict.expected), set(conflict.found)
            touches = self.touches(conflict.path, tree, start - 1, stop + 1, piece)
            names |= {
                touch.name: None
                for touch in touches
                if touch.removed & expected or touch.added & found
            }
        return list(names)[:MOST_COMMITS]

    def touches(self, path: str, tree: str, start: int, stop: int, piece: Piece) -> list[Touch]:
        """The commits, newest first, that changed lines (from 0) of a file as it is in ``tree``.

        git-log(1), ``-L``.  ``tree`` is the target's, perhaps with other patches on it.
        """
        here, there = self._scratch.entry(tree, path), self._scratch.entry(self._until, path)
        if here is None or there is None:
            return []
        if here.object != there.object:
            where = LineMap(self._scratch.line_changes(here.object, there.object))
            before = diffs.lines_of(self._scratch.read(here.object))
            low = min(max(start, 0), len(before) - 1)
            place = where.place(before, low, max(min(stop, len(before)), low + 1))
            start, stop = place.start, place.stop
        count = len(diffs.lines_of(self._scratch.read(there.object)))
        first, last = max(start, 0) + 1, min(max(stop, start + 1), count)
        if not first <= last:
            return []
        since = self._recent(path, self.merge_base(piece) or "")
        blobs = self._scratch.logged(self._until, *self._without(*since), paths=[path])
        self._repositories.contents(self._url, blobs)
        listing = self._scratch.text(
            *("log", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv"),
            *(f"--format=%x00%H%x01{NAMED}%x01", f"-L{first},{last}:{path}"),
            *(self._until, *self._without(*since)),
        )
        return [_touch(row) for row in listing.split("\0")[1:]]


def _reverts(message: str, commits: Iterable[str]) -> bool:
    """Whether a message says, as git-revert(1) writes it, that one of these is reverted."""
    named = re.findall(r"This reverts commit ([0-9a-f]{7,40})", message)
    return any(commit.startswith(short) for short in named for commit in commits)


def _texts(lines: Iterable[bytes]) -> set[str]:
    return {line.rstrip(b"\r\n").decode("utf-8", "replace") for line in lines if not trivial(line)}


def _touch(row: str) -> Touch:
    commit, name, diff = row.split("\x01", 2)
    body = diff.partition("\n@@")[2].splitlines()
    return Touch(
        commit,
        name,
        frozenset(line[1:] for line in body if line.startswith("-")),
        frozenset(line[1:] for line in body if line.startswith("+")),
    )
