"""What `patch check`, `pin` and `bisect` read in the history of an upstream; no build needs it.

git decides whether a target contains a patch: ancestry, and git-patch-id(1) of the commits since
the merge base that touch the files of the patch, also of merged branches whose changes a merge has
dropped (``--full-history``).  A change that came in other words is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from builder.sources import diff
from builder.sources.diff import Conflict, FileDiff, bare, trivial
from builder.sources.git import DIFF, GITLINK, GitError, Scratch
from builder.sources.mirrors import Repositories
from builder.sources.patches import Piece

MOST_COMMITS = 5
MOST_VERSIONS = 1000
"""The newest commits that touch the files of a patch, whose changes are read."""
MOST_FILES = 200
"""Files that one commit changes, up to which renames are looked for in it."""
ONE_BY_ONE = ("--full-history", "--no-merges")
MERGES = ("--first-parent", "--merges", "--diff-merges=first-parent")


class PatchedCommit(NamedTuple):
    """A commit, and its change of the files of a patch since its first parent."""

    name: str
    message: str
    text: bytes
    id: str
    """git-patch-id(1) of the text; empty if it changes no file."""


class Introduction(NamedTuple):
    """How a target got a patch: the commit (empty: git shows none), and whether it still has it."""

    by: str = ""
    kept: bool = True
    """Not the merge that dropped it (``-s ours``)."""
    reverted_by: str = ""
    lines_left: bool = True
    """Half of the lines that it adds are in the files; for a patch that only removes, are not."""

    @property
    def arrived(self) -> bool:
        """Whether upstream took it, and did not revert it."""
        return bool(self.by) and self.kept and not self.reverted_by

    @property
    def lasts(self) -> bool:
        """Whether the target has the patch."""
        return self.arrived and self.lines_left


class History:
    """The commits of a target, ``until``, in the repository at ``url``.

    ``pin`` is the commit of the recipe, the origin of patches without commits of their own; empty
    if the target is the pin itself.  Raises ``FetchError`` if they cannot be fetched.
    """

    def __init__(self, repositories: Repositories, url: str, until: str, pin: str = "") -> None:
        self._repositories = repositories
        self._scratch = repositories.scratch
        self._url = url
        self._until = until
        self._pin = pin
        self._known: dict[tuple[str, ...], list[PatchedCommit]] = {}
        repositories.walk(url, *filter(None, (pin, until)))

    def name(self, commit: str) -> str:
        """A commit for display: abbreviated name, day, subject."""
        return self._scratch.text("log", "--no-walk", "--format=%h %cs %s", commit)

    def _since(self, piece: Piece) -> str:
        """The merge base of the target and the commit that a patch was made for, or the pin.

        Empty, which is all of the history, if that is unknown or the target itself.
        """
        origin = piece.base or self._pin
        if not origin or self._scratch.missing([origin]):
            return ""
        base = next(iter(self._scratch.merge_bases(origin, self._until)), "")
        return "" if base == self._until else base

    def _commits(
        self, since: str, until: str, paths: Sequence[str], *which: str, url: str = ""
    ) -> list[PatchedCommit]:
        """The commits after ``since`` (empty: all) that touch some files, oldest first.

        Without ``which`` (MERGES) each one that is no merge; ``url`` has them if not the target's.
        """
        key = (since, until, *which, *paths)
        if key not in self._known:
            listing = self._scratch.text(
                *("log", "--topo-order", f"--max-count={MOST_VERSIONS}", *(which or ONE_BY_ONE)),
                *("--no-renames", "--raw", "--no-abbrev", "--format=%x00%H%x01%P%x01%B%x01"),
                *(until, *([f"^{since}"] if since else []), "--", *paths),
            )
            rows = [row.split("\x01", 3) for row in listing.split("\0")[:0:-1]]
            changes = [line.split(" ") for row in rows for line in row[3].splitlines() if line]
            blobs = [
                blob
                for mode, to, *found in changes
                if GITLINK not in {mode[1:], to}
                for blob in found[:2]
            ]
            self._repositories.contents(url or self._url, blobs)
            spans = [(name, parents.partition(" ")[0]) for name, parents, *_ in rows]
            texts, ids = self._diffs_of(spans, paths)
            self._known[key] = [
                PatchedCommit(name, message, texts.get(name, b""), ids.get(name, ""))
                for name, _, message, _ in rows
            ]
        return self._known[key]

    def _diffs_of(
        self, spans: Iterable[tuple[str, str]], paths: Sequence[str]
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """The diff to each commit from its parent (empty: a root), and its git-patch-id(1)."""
        names = "".join(f"{commit} {parent}".rstrip() + "\n" for commit, parent in spans).encode()
        text = self._scratch.run(*DIFF, "--root", "--stdin", "--", *paths, stdin=names)
        parts = re.split(rb"(?m)^([0-9a-f]{40})\n", text)
        texts = {name.decode(): each for name, each in zip(parts[1::2], parts[2::2], strict=True)}
        listing = self._scratch.run("patch-id", "--stable", stdin=text).decode()
        return texts, {commit: name for name, commit in map(str.split, listing.splitlines())}

    # Whether the target contains the patch

    def introduced(
        self, piece: Piece, files: Sequence[FileDiff], *, by_ids: bool = True
    ) -> Introduction:
        """How the target got a patch.

        Without ``by_ids`` or ``files`` only its own commits are looked for: patch ids need the
        contents of many files.
        """
        by, known = "", piece.head and not self._scratch.missing([piece.head])
        if known and self._scratch.is_ancestor(piece.head, self._until):
            by = piece.head
        elif by_ids and files:
            by = self._same_change(piece, files)
        if not by:
            return Introduction()
        merge, paths = merge_of(self._scratch, by, self._until) or by, paths_of(files)
        if not files:
            return Introduction(merge)
        parent = self._scratch.text("log", "--no-walk", "--format=%P", merge).partition(" ")[0]
        for commit in filter(None, (merge, parent)):
            items = (self._scratch.entry(commit, path) for path in paths)
            self._repositories.contents(self._url, [item.object for item in items if item])
        spans = [(merge, parent), (parent, merge)] if parent else [(merge, "")]
        ids = self._diffs_of(spans, paths)[1]
        reverted = self._reverted_by(merge, by, paths, ids.get(merge), ids.get(parent))
        return Introduction(
            merge, merge == by or merge in ids, reverted, self._has_lines(files, parent)
        )

    def described(self, found: Introduction) -> str:
        """Where a patch came from, and why the target has it no more, in a sentence."""
        what = f"upstream introduced it with {self.name(found.by)}"
        if found.reverted_by:
            return f"{what}, and reverted it with {self.name(found.reverted_by)}"
        return what if found.lasts else f"{what}, but the tree lacks its lines"

    def _same_change(self, piece: Piece, files: Sequence[FileDiff]) -> str:
        """The commit with the patch id of a patch; or the last one, if it has each commit of it."""
        paths, since, first = paths_of(files), self._since(piece), dict[str, str]()
        commits = self._commits(since, self._until, paths)
        for commit in (*commits, *self._commits(since, self._until, paths, *MERGES)):
            first.setdefault(commit.id, commit.name)
        ids = set[str]()
        for step in diff.steps(files):
            text = b"".join(file.text for file in step)
            listing = self._scratch.run("patch-id", "--stable", stdin=text).decode()
            ids.add(listing.partition(" ")[0])
        if not ids <= first.keys() and piece.head and not self._scratch.missing([piece.base]):
            own = self._commits(piece.base, piece.head, paths, url=piece.url)
            ids = {commit.id for commit in own}
        if not ids or "" in ids or not ids <= first.keys():
            return ""
        return next(name for key, name in reversed(first.items()) if key in ids)

    def _reverted_by(
        self, merge: str, by: str, paths: Sequence[str], own: str | None, inverse: str | None
    ) -> str:
        """The commit that reverted what ``merge`` introduced; empty if none did.

        It has the patch id of the inverse, or says so as git-revert(1) does.  The last one counts,
        since a revert may be reverted.
        """
        introduced, reverted, last = {merge, by}, set[str](), ""
        for commit in self._commits(merge, self._until, paths):
            named, wanted = (reverted, own) if last else (introduced, inverse)
            reverts = re.findall(r"This reverts commit ([0-9a-f]{7,40})", commit.message)
            says = any(each.startswith(short) for short in reverts for each in named)
            if says or (commit.id and commit.id == wanted):
                (introduced if last else reverted).add(commit.name)
                last = "" if last else commit.name
        return last

    def _has_lines(self, files: Sequence[FileDiff], parent: str) -> bool:
        """Whether half of the added lines that ``parent`` lacks are there.

        Without any, whether half of the removed ones are gone.
        """
        added, removed, there, gone = 0, 0, 0, 0
        for file in files:
            old, now = (self._lines(file.path, each) for each in (parent, self._until))
            changed = _signed(file.text)
            more = {line[1:] for line in changed if line[:1] == b"+"}
            more = more.difference(old or ()) or more  # lines that the file had tell little
            less = {line[1:] for line in changed if line[:1] == b"-"}
            added, there = added + len(more), there + len(more & (now or set()))
            if now is not None or file.new is None:
                gone += len(less - (now or set()))
            removed += len(less)
        return 2 * there >= added if added else 0 < removed <= 2 * gone

    def _lines(self, path: str, commit: str) -> set[bytes] | None:
        item = self._scratch.entry(commit, path) if commit else None
        if item is None:
            return None
        self._repositories.contents(self._url, [item.object])
        return {bare(line) for line in diff.lines_of(self._scratch.read(item.object))}

    # Removed and renamed files, and the commits that changed lines

    def _remover(self, path: str, piece: Piece) -> str:
        if self._scratch.entry(self._until, path) is not None:
            return ""
        since = self._since(piece)
        return self._scratch.text(
            *("log", "-1", "--full-history", "--no-renames", "--diff-filter=D", "--format=%H"),
            *(self._until, *([f"^{since}"] if since else []), "--", path),
        )

    def moved(self, path: str, piece: Piece) -> tuple[str, list[str]]:
        """The present name of a file, and the commits that renamed it; empty if none did."""
        commits = list[str]()
        while path and len(commits) < MOST_COMMITS and (by := self._remover(path, piece)):
            pairs = self._scratch.changes(f"{by}^", by)
            alike = len(pairs) <= MOST_FILES  # else only renames of unchanged files
            if alike:
                self._repositories.changed_contents(self._url, f"{by}^", by)
            listing = self._scratch.run(
                *("diff-tree", "-r", "-z", "-M" if alike else "-M100%", "--diff-filter=R"),
                *("--no-commit-id", "--name-status", by),
            )
            fields = listing.decode("utf-8", "surrogateescape").split("\0")
            path = dict(zip(fields[1::3], fields[2::3], strict=False)).get(path, "")
            commits.append(self.name(by))
        return (path, commits) if commits else ("", [])

    def nearest(self, piece: Piece, files: Sequence[FileDiff]) -> list[str]:
        """The commit that made most of the changes of a diff, which the target contains."""
        wanted = _signed(diff.joined(files))
        commits = self._commits(self._since(piece), self._until, paths_of(files))
        shares = {each.name: len(wanted & _signed(each.text)) for each in commits}
        best = max(shares, key=lambda name: shares[name], default="")
        return [self.name(best)] if best and shares[best] else []

    def changing(self, conflicts: Iterable[Conflict], piece: Piece) -> list[str]:
        """The commits that changed the lines that a patch expects, newest first.

        They removed the expected lines; if none did, they added the lines that were found instead.
        """
        found: dict[str, None] = {}
        since = self._since(piece)
        for conflict in conflicts:
            if not conflict.hunk:
                by = self._remover(conflict.path, piece)
                found |= {by: None} if by else {}
                continue
            commits = self._commits(since, self._until, [conflict.path])
            for sign, lines in ((b"-", conflict.expected), (b"+", conflict.found)):
                texts = [line.encode() for line in lines]
                telling = [text for text in texts if not trivial(text)] or texts
                wanted = {sign + bare(text) for text in telling}
                by_lines = [
                    each
                    for each in reversed(commits)
                    if wanted.intersection(map(bare, diff.lines_of(each.text)))
                ]
                found |= dict.fromkeys(each.name for each in by_lines[:MOST_COMMITS])
                if by_lines:
                    break
        return [self.name(commit) for commit in list(found)[:MOST_COMMITS]]


def merge_of(scratch: Scratch, commit: str, branch: str) -> str | None:
    """The merge that brought ``commit`` into ``branch``; None if no merge did.

    It is the first commit, on the branch's first-parent line, that descends from ``commit``.
    """
    listing = scratch.text("rev-list", "--ancestry-path", "--parents", f"{commit}..{branch}")
    first = dict(line.split(" ")[:2] for line in listing.splitlines())
    merge, parent = "", branch
    while parent in first:
        merge, parent = parent, first[parent]
    return merge if merge and parent != commit else None


def paths_of(files: Iterable[FileDiff]) -> list[str]:
    """Every path in a diff."""
    return sorted({path for file in files for path in file.paths})


def _signed(text: bytes) -> set[bytes]:
    """The telling lines that a diff changes, without white space, after "-" or "+"."""
    lines = (line for line in diff.lines_of(text) if line[:1] in {b"-", b"+"})
    return {
        bare(line)
        for line in lines
        if not trivial(line[1:]) and not line.startswith((b"--- ", b"+++ "))
    }


# git bisect without a work tree, on commits whose contents need not be mirrored.
#
# git-bisect(1) halves the range, avoids skipped commits and keeps its state in refs.  With
# ``--no-checkout`` it checks nothing out, and BISECT_HEAD is the next commit to evaluate.  At the
# end it wants to show the first bad commit, and fails if its contents are missing: whether a
# bisection has ended is therefore read from its refs, not from its output.

Word = Literal["good", "bad", "skip"]
BAD = "refs/bisect/bad"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit for display; ``date`` is the committer's day (YYYY-MM-DD)."""

    name: str
    date: str
    author: str
    subject: str

    @property
    def short(self) -> str:
        """Nine digits and the subject."""
        return f"{self.name[:9]} {self.subject}"


class Bisection:
    """Finds the first bad commit between ``good`` and ``bad``, whose histories are mirrored.

    ``first_parent`` follows only the first parent of each merge.  Raises ``GitError``.
    """

    def __init__(
        self, scratch: Scratch, good: Iterable[str], bad: str, *, first_parent: bool = False
    ) -> None:
        self._scratch = scratch
        self._first_parent = ["--first-parent"] if first_parent else []
        scratch.text("update-ref", "--no-deref", "HEAD", bad)  # git bisect needs a HEAD
        self._bisect("start", "--no-checkout", *self._first_parent, bad, *good, "--")

    def mark(self, word: Word, commit: str) -> None:
        """Mark a commit.  Raises ``GitError`` if git cannot continue from there."""
        self._bisect(word, commit)

    def _bisect(self, *arguments: str) -> None:
        try:
            self._scratch.text("bisect", *arguments)
        except GitError:
            if not self._has_ended():
                raise

    def _has_ended(self) -> bool:
        try:
            return not self.open()
        except GitError:
            return False  # it did not even start

    def candidates(self) -> list[str]:
        """The commits that may be the first bad one, oldest first; the last is known to be bad."""
        order = ("rev-list", "--topo-order", "--reverse", *self._first_parent)
        listing = self._scratch.text(*order, BAD, "--not", "--glob=refs/bisect/good-*")
        return listing.splitlines()

    def open(self) -> list[str]:
        """The candidates that are neither known to be bad nor skipped."""
        listing = self._scratch.text("for-each-ref", "--format=%(objectname)", "refs/bisect/skip-*")
        closed = {*listing.splitlines(), self._scratch.text("rev-parse", "--verify", BAD)}
        return [commit for commit in self.candidates() if commit not in closed]

    @property
    def next(self) -> str:
        """The commit that git asks for next, while some are open."""
        return self._scratch.text("rev-parse", "--verify", "BISECT_HEAD")

    @property
    def log(self) -> str:
        """The input of ``git bisect replay``."""
        return self._scratch.text("bisect", "log")


def described(scratch: Scratch, commits: Sequence[str]) -> list[Commit]:
    """Commits for display, in the same order.  Raises ``GitError``."""
    if not commits:
        return []
    listing = scratch.text(
        *("log", "--no-walk=unsorted", "--no-show-signature", "-z"),
        *("--format=%H%x1f%cs%x1f%an%x1f%s", *commits, "--"),
    )
    lines = [line.split("\x1f", 3) for line in listing.rstrip("\0").split("\0")]
    return [
        Commit(name, date, _plain(author), _plain(subject)) for name, date, author, subject in lines
    ]


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
