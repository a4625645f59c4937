"""The commits of a target since the merge base with the commit that a patch was made for.

Only commits that touch the files of the patch are read; blobs are fetched when they are read.
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
"""The newest commits that touch the files of a patch, whose changes are read."""
MOST_FILES = 200
"""Files of one commit that are searched for lines that it removed elsewhere."""
NAMED = "%h %cs %s"


class CommitsSince:
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
        self._shared: dict[str, str | None] = {}
        self._known_changes: dict[tuple[str, ...], list[Block]] = {}
        repositories.walk(url, *filter(None, (pin, until)))

    def name(self, commit: str) -> str:
        """A commit for display: abbreviated name, day, subject."""
        return self._scratch.text("log", "-1", f"--format={NAMED}", commit)

    def merge_base(self, piece: Piece) -> str | None:
        """The merge base of the target and the commit that a patch was made for, or the pin.

        None if that is unknown.
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
        """The blocks that each of these commits of a repository changes in some files."""
        known = self._known_changes
        unread = [commit for commit in commits if (commit, *paths) not in known]
        if unread:
            self._repositories.contents(url, self._scratch.blobs_of(unread, paths))
            texts = self._scratch.diffs_of(unread, paths)
            known |= {
                (commit, *paths): blocks_of(_parsed(texts.get(commit, b""))) for commit in unread
            }
        return {commit: known[commit, *paths] for commit in commits}

    def _lines(self, blob: str) -> list[bytes]:
        return diff.lines_of(self._scratch.read(blob))

    def _blob(self, commit: str, path: str) -> str:
        """The blob of a file in a commit or a tree, fetched if need be; empty if there is none."""
        item = self._scratch.entry(commit, path)
        if item is None:
            return ""
        self._repositories.contents(self._url, [item.object])
        return item.object

    def _recent(self, path: str, since: str) -> list[str]:
        """The commits at which to stop: ``since``, and where a file has too many versions."""
        commits = self._scratch.text(
            *("rev-list", "--full-history", "--max-count=1", f"--skip={MOST_VERSIONS}"),
            *(self._until, *self._without(since), "--", path),
        )
        return [since, *commits.split()]

    # Removed and renamed files, and submodules

    def removers(self, path: str, piece: Piece) -> list[str]:
        """The commit that removed a file, unless it was added again."""
        return [self.name(commit) for commit in self._remover(path, piece)]

    def _remover(self, path: str, piece: Piece) -> list[str]:
        if self._scratch.entry(self._until, path) is not None:
            return []
        since = self.merge_base(piece) or ""
        return self._scratch.text(
            *("log", "-1", "--full-history", "--no-renames", "--diff-filter=D", "--format=%H"),
            *(self._until, *self._without(since), "--", path),
        ).split()

    def renamed(
        self, files: Sequence[FileDiff], piece: Piece
    ) -> tuple[list[FileDiff], dict[str, list[str]]]:
        """A diff with the current names of its files; the renaming commits, by the new name."""
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
        """The submodules that contain files of a diff; their own histories are not read."""
        parents = {str(up) for path in paths_of(files) for up in PurePosixPath(path).parents}
        parents.discard(".")
        items = self._scratch.items(self._until, *sorted(parents)) if parents else ()
        return [item.path for item in items if item.mode == GITLINK and item.path in parents]

    def moved(self, submodules: Sequence[str], piece: Piece) -> list[str]:
        """The commits, newest first, that moved these submodules to other commits."""
        since = self.merge_base(piece) or ""
        return self._scratch.text(
            *("log", f"--max-count={MOST_COMMITS}", "--no-merges", f"--format={NAMED}"),
            *(self._until, *self._without(since), "--", *submodules),
        ).splitlines()

    def _renamed_by(self, commit: str, path: str) -> str:
        """The new name of a file that a commit renamed; empty if it only removed it."""
        blobs = self._scratch.blobs_of([commit], [])
        alike = len(blobs) <= 2 * MOST_FILES  # else only renames of unchanged files
        self._repositories.contents(self._url, blobs if alike else [])
        listing = self._scratch.run(
            *("diff-tree", "-r", "-z", "-M" if alike else "-M100%", "--diff-filter=R"),
            *("--no-commit-id", "--name-status", commit),
        )
        fields = listing.decode("utf-8", "surrogateescape").split("\0")
        pairs = zip(fields[1::3], fields[2::3], strict=False)
        return next((new for old, new in pairs if old == path), "")

    def removed_lines(
        self, piece: Piece, files: Sequence[FileDiff], pin_tree: str
    ) -> tuple[str, tuple[str, ...]] | None:
        """Whether the target once had the lines that a diff changes: their path now, and commits.

        The path is empty if no file has them; the commits removed or moved them.  None if the
        target never had them, as far as is known.  ``pin_tree`` is the pin's, with submodules.
        """
        since = self.merge_base(piece) or self._first_with(files)
        names: dict[str, None] = {}
        moved = ""
        for file in files:
            before = self._content(since, file.old) if since and file.old else None
            if before is None and since == self._pin and pin_tree:
                before = self._scratch.file(pin_tree, file.old or "")
            if not had_lines(file, before):
                return None
            wanted = {without_blanks(line) for line in changing(file)}
            for commit in self._removing_commits(file.old or "", wanted, since or ""):
                names[self.name(commit)] = None
                moved = moved or self._elsewhere(commit, file.old or "", wanted)
        return moved, tuple(names)

    def _first_with(self, files: Sequence[FileDiff]) -> str | None:
        """The newest commit with the old blob of a file of a diff."""
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

    def _removing_commits(self, path: str, wanted: set[bytes], since: str) -> list[str]:
        """The commits, newest first, that removed one of these lines from a file."""
        stops = self._without(*self._recent(path, since))
        span = (self._until, *stops)
        commits = self._scratch.text("rev-list", "--no-merges", *span, "--", path).split()
        return [
            commit
            for commit, blocks in self._changes(commits, [path], self._url).items()
            if any(line in wanted for block in blocks for line in block.removed)
        ][:MOST_COMMITS]

    def _elsewhere(self, commit: str, path: str, wanted: set[bytes]) -> str:
        """Another file to which a commit moved these lines; empty if there is none."""
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
    """Whether the contents of a file have the lines that a diff changes."""
    there = {line.strip() for line in diff.lines_of(content or b"")}
    return {line.strip() for line in changing(file)} <= there


def paths_of(files: Iterable[FileDiff]) -> list[str]:
    """Every path in a diff."""
    return sorted({path for file in files for path in file.paths})


def _parsed(text: bytes) -> list[FileDiff]:
    try:
        return diff.parse(text)
    except NotADiffError:
        return []  # a change of modes or of a submodule
