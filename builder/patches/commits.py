"""The commits of a target since it parted from what a patch was made for: what they changed.

Everything is limited to what came since, and to the files of the patch: blobs are fetched where
they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from builder.patches import diff
from builder.patches.blocks import Block, blocks_of, without_blanks
from builder.patches.conflicts import changing
from builder.patches.diff import FileDiff, NotADiffError
from builder.patches.ranges import Piece
from builder.tools.git.repositories import Repositories
from builder.tools.git.repository import GITLINK

MOST_COMMITS = 5
MOST_VERSIONS = 300
"""Commits whose changes are read, of those that touch the files of a patch."""
MOST_FILES = 200
"""Files of one commit in which lines are looked for that it took away elsewhere."""
NAMED = "%h %cs %s"


class Past:
    """The commits of a target, ``until``, in the repository at ``url``.

    ``pin`` is where the recipe stands, for patches that no commits tell the origin of; empty
    where the target is the pin itself.  Raises ``FetchError`` where they cannot be had.
    """

    def __init__(self, repositories: Repositories, url: str, until: str, pin: str = "") -> None:
        self._repositories = repositories
        self._scratch = repositories.scratch
        self._url = url
        self._until = until
        self._pin = pin
        self._shared: dict[str, str | None] = {}
        repositories.walk(url, *filter(None, (pin, until)))

    def name(self, commit: str) -> str:
        """A commit as people know it: abbreviated, day, subject."""
        return self._scratch.text("log", "-1", f"--format={NAMED}", commit)

    def parted(self, piece: Piece) -> str | None:
        """Where the history of the target parted from what a change was made for, or from the pin.

        None where that is not known.
        """
        origin = piece.base or self._pin
        if origin not in self._shared:
            known = origin and not self._scratch.missing([origin])
            bases = self._scratch.merge_bases(origin, self._until) if known else []
            self._shared[origin] = bases[0] if bases else None
        return self._shared[origin]

    def _log(self, *arguments: str) -> str:
        """``git log`` of the target since a commit: options, that commit, "--", paths."""
        at = arguments.index("--")
        options, since, paths = arguments[: at - 1], arguments[at - 1], arguments[at:]
        return self._scratch.text(
            "log", "--no-renames", *options, self._until, *self._without(since), *paths
        )

    def _without(self, *commits: str) -> list[str]:
        return [f"^{commit}" for commit in dict.fromkeys(commits) if commit]

    def _changes(
        self, commits: Sequence[str], paths: Sequence[str], url: str
    ) -> dict[str, list[Block]]:
        """What each of these commits of a repository does to some files."""
        if not commits:
            return {}
        self._repositories.contents(url, self._scratch.blobs_of(commits, paths))
        return {
            commit: blocks_of(_parsed(text))
            for commit, text in self._scratch.diffs_of(commits, paths).items()
        }

    def _lines(self, blob: str) -> list[bytes]:
        return diff.lines_of(self._scratch.read(blob))

    def _blob(self, commit: str, path: str) -> str:
        """The file of a commit or a tree, whose contents are fetched; empty where it has none."""
        item = self._scratch.entry(commit, path)
        if item is None:
            return ""
        self._repositories.contents(self._url, [item.object])
        return item.object

    def _recent(self, path: str, since: str) -> list[str]:
        """Where to stop: at ``since``, and where a file has had more versions than are read."""
        commits = self._scratch.text(
            *("rev-list", "--full-history", "--max-count=1", f"--skip={MOST_VERSIONS}"),
            *(self._until, *self._without(since), "--", path),
        )
        return [since, *commits.split()]

    # What went

    def removers(self, path: str, piece: Piece) -> list[str]:
        """The commit that removed a file, where it did not come back."""
        return [self.name(commit) for commit in self._remover(path, piece)]

    def _remover(self, path: str, piece: Piece) -> list[str]:
        if self._scratch.entry(self._until, path) is not None:
            return []
        since = self.parted(piece) or ""
        return self._scratch.text(
            *("log", "-1", "--full-history", "--no-renames", "--diff-filter=D", "--format=%H"),
            *(self._until, *self._without(since), "--", path),
        ).split()

    def renamed(
        self, files: Sequence[FileDiff], piece: Piece
    ) -> tuple[list[FileDiff], dict[str, list[str]]]:
        """A diff whose files have the names of today; who gave them, by the new name."""
        found, names = [], {}
        for file in files:
            path, commits = file.old or "", list[str]()
            while len(commits) < MOST_COMMITS and (
                by := self._remover(path, piece) if path else []
            ):
                path = self._renamed_by(by[0], path)
                commits += by
            if path and commits:
                names[path] = [self.name(commit) for commit in commits]
                file = replace(file, old=path, new=path if file.new else None)
            found.append(file)
        return found, names

    def submodules(self, files: Sequence[FileDiff]) -> list[str]:
        """The submodules that hold files of a diff; nothing reads their own histories."""
        parents = {str(up) for path in paths_of(files) for up in PurePosixPath(path).parents}
        parents.discard(".")
        items = self._scratch.items(self._until, *sorted(parents)) if parents else ()
        return [item.path for item in items if item.mode == GITLINK and item.path in parents]

    def moved(self, submodules: Sequence[str], piece: Piece) -> list[str]:
        """The commits, newest first, that gave these submodules other commits."""
        since = self.parted(piece) or ""
        return self._scratch.text(
            *("log", f"--max-count={MOST_COMMITS}", "--no-merges", f"--format={NAMED}"),
            *(self._until, *self._without(since), "--", *submodules),
        ).splitlines()

    def _renamed_by(self, commit: str, path: str) -> str:
        """The name that a commit gave a file; empty where it only removed it."""
        blobs = self._scratch.blobs_of([commit], [])
        alike = len(blobs) <= 2 * MOST_FILES  # of more only those that stayed as they were
        self._repositories.contents(self._url, blobs if alike else [])
        listing = self._scratch.run(
            *("diff-tree", "-r", "-z", "-M" if alike else "-M100%", "--diff-filter=R"),
            *("--no-commit-id", "--name-status", commit),
        )
        fields = listing.decode("utf-8", "surrogateescape").split("\0")
        pairs = zip(fields[1::3], fields[2::3], strict=False)
        return next((new for old, new in pairs if old == path), "")

    def went(
        self, piece: Piece, files: Sequence[FileDiff], like: str
    ) -> tuple[str, tuple[str, ...]] | None:
        """Whether the target once had the lines that a diff changes: where they went, and by whom.

        The first is the path that they are in now, empty where they are nowhere.  None: they were
        never there, as far as its history tells.  ``like`` is the pin's tree, with submodules.
        """
        since = self.parted(piece) or self._first_with(files)
        names: dict[str, None] = {}
        moved = ""
        for file in files:
            before = self._content(since, file.old) if since and file.old else None
            if before is None and since == self._pin and like:
                before = self._scratch.file(like, file.old or "")
            if not had_lines(file, before):
                return None
            wanted = {without_blanks(line) for line in changing(file)}
            for commit in self._takers(file.old or "", wanted, since or ""):
                names[self.name(commit)] = None
                moved = moved or self._elsewhere(commit, file.old or "", wanted)
        return moved, tuple(names)

    def _first_with(self, files: Sequence[FileDiff]) -> str | None:
        """The newest commit that has a file as a diff names it, by git's name for its contents."""
        file = next((each for each in files if each.preimage and each.old), None)
        if file is None or file.old is None:
            return None
        listing = self._scratch.text(
            *("log", "--full-history", "--no-renames", "--raw", "--abbrev=40", "--format=%H"),
            *(self._until, "--", file.old),
        )
        commit = ""
        for line in listing.splitlines():
            if not line.startswith(":"):
                commit = line or commit
            elif line.split()[3].startswith(file.preimage):
                return commit
        return None

    def _content(self, commit: str, path: str) -> bytes | None:
        blob = self._blob(commit, path)
        return self._scratch.read(blob) if blob else None

    def _takers(self, path: str, wanted: set[bytes], since: str) -> list[str]:
        """The commits, newest first, that took one of these lines out of a file."""
        stops = self._without(*self._recent(path, since))
        span = (self._until, *stops)
        commits = self._scratch.text("rev-list", "--no-merges", *span, "--", path).split()
        return [
            commit
            for commit, blocks in self._changes(commits, [path], self._url).items()
            if any(line in wanted for block in blocks for line in block.removed)
        ][:MOST_COMMITS]

    def _elsewhere(self, commit: str, path: str, wanted: set[bytes]) -> str:
        """Another file to which a commit moved these lines; empty where there is none."""
        touched = self._scratch.text(
            *("diff-tree", "-r", "--no-commit-id", "--no-renames", "--name-only", "--root", commit)
        ).splitlines()
        others = [each for each in touched if each != path]
        if not 0 < len(others) <= MOST_FILES:
            return ""
        blocks = self._changes([commit], others, self._url).get(commit, [])
        for other in others:
            if wanted <= {line for block in blocks if block.path == other for line in block.added}:
                return other
        return ""


def had_lines(file: FileDiff, content: bytes | None) -> bool:
    """Whether some contents of a file have the lines that a diff changes."""
    there = {line.strip() for line in diff.lines_of(content or b"")}
    return {line.strip() for line in changing(file)} <= there


def paths_of(files: Iterable[FileDiff]) -> list[str]:
    """Every path that a diff names."""
    return sorted({path for file in files for path in file.paths})


def _parsed(text: bytes) -> list[FileDiff]:
    try:
        return diff.parse(text)
    except NotADiffError:
        return []  # a change of modes or of a submodule
