"""The commits of a target that touch the files of a patch; their blobs are fetched when read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from builder.patches import diff
from builder.patches.blocks import Block, blocks_of
from builder.patches.diff import FileDiff, NotADiffError
from builder.patches.ranges import Piece
from builder.tools.git.repositories import Repositories
from builder.tools.git.repository import GITLINK

MOST_COMMITS = 5
MOST_VERSIONS = 1000
"""The newest commits that touch the files of a patch, whose changes are read."""
MOST_FILES = 200
"""Files of one commit that are searched for lines that it removed elsewhere."""
NAMED = "%h %cs %s"


@dataclass(frozen=True, slots=True)
class PatchedCommit:
    """A commit, its first parent (empty if it has none), message, and the blobs that it changed."""

    name: str
    parent: str
    message: str
    blobs: tuple[str, ...]


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
        self._listed: dict[tuple[str, ...], list[PatchedCommit]] = {}
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

    def _commits(self, since: str, paths: Sequence[str], *options: str) -> list[PatchedCommit]:
        """The target's commits since ``since`` that touch some files, oldest first.

        ``--full-history`` keeps commits of merged branches whose changes a merge has dropped.
        """
        key = (since, *options, *paths)
        if key not in self._listed:
            most = f"--max-count={MOST_VERSIONS}"
            span = (self._until, *self._without(since))
            found = self._log("--topo-order", most, *(options or ONE_BY_ONE), *span, paths=paths)
            self._listed[key] = found[::-1]
        return self._listed[key]

    def _merged(self, commit: str, paths: Sequence[str]) -> PatchedCommit:
        """A commit with the changes to its first parent."""
        (found,) = self._log("-1", "--full-history", "--sparse", MERGED, commit, paths=paths)
        return found

    def _log(self, *arguments: str, paths: Sequence[str]) -> list[PatchedCommit]:
        listing = self._scratch.text(
            *("log", "--no-renames", "--raw", "--no-abbrev", "--format=%x00%H%x01%P%x01%B%x01"),
            *(*arguments, "--", *paths),
        )
        return [_commit(row) for row in listing.split("\0")[1:]]

    def _since(self, piece: Piece, paths: Sequence[str], *options: str) -> list[PatchedCommit]:
        """The commits since the merge base with the commit that a patch was made for.

        All commits if that is the target itself, or unknown.
        """
        since = self.merge_base(piece) or ""
        return self._commits("" if since == self._until else since, paths, *options)

    def _without(self, *commits: str) -> list[str]:
        return [f"^{commit}" for commit in dict.fromkeys(commits) if commit]

    def _changes(
        self, commits: Sequence[PatchedCommit], paths: Sequence[str]
    ) -> dict[str, list[Block]]:
        """The blocks that each of these commits changes in some files."""
        known = self._known_changes
        unread = [each for each in commits if (each.name, *paths) not in known]
        if unread:
            self._repositories.contents(self._url, [blob for each in unread for blob in each.blobs])
            texts = self._scratch.diffs_of([(each.name, each.parent) for each in unread], paths)
            for each in unread:
                known[each.name, *paths] = blocks_of(parsed(texts.get(each.name, b"")))
        return {each.name: known[each.name, *paths] for each in commits}

    def _lines(self, blob: str) -> list[bytes]:
        return diff.lines_of(self._scratch.read(blob))

    def _blob(self, commit: str, path: str) -> str:
        """The blob of a file in a commit or a tree, fetched if need be; empty if there is none."""
        item = self._scratch.entry(commit, path)
        if item is None:
            return ""
        self._repositories.contents(self._url, [item.object])
        return item.object

    # Removed and renamed files

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

    def _renamed_by(self, commit: str, path: str) -> str:
        """The new name of a file that a commit renamed; empty if it only removed it."""
        blobs = self._scratch.blobs_of(commit)
        alike = len(blobs) <= 2 * MOST_FILES  # else only renames of unchanged files
        self._repositories.contents(self._url, blobs if alike else [])
        listing = self._scratch.run(
            *("diff-tree", "-r", "-z", "-M" if alike else "-M100%", "--diff-filter=R"),
            *("--no-commit-id", "--name-status", commit),
        )
        fields = listing.decode("utf-8", "surrogateescape").split("\0")
        pairs = zip(fields[1::3], fields[2::3], strict=False)
        return next((new for old, new in pairs if old == path), "")


ONE_BY_ONE = ("--full-history", "--no-merges")
MERGED = "--diff-merges=first-parent"
MERGES = ("--first-parent", "--merges", MERGED)


def _commit(row: str) -> PatchedCommit:
    name, parents, message, changes = row.split("\x01", 3)
    fields = [line.split(" ") for line in changes.splitlines() if line.startswith(":")]
    links = [field for field in fields if GITLINK not in {field[0][1:], field[1]}]
    blobs = tuple(blob for field in links for blob in field[2:4])
    return PatchedCommit(name, parents.partition(" ")[0], message, blobs)


def paths_of(files: Iterable[FileDiff]) -> list[str]:
    """Every path in a diff."""
    return sorted({path for file in files for path in file.paths})


def parsed(text: bytes) -> list[FileDiff]:
    """The files of a diff; none if it is one of modes or of a submodule only."""
    try:
        return diff.parse(text)
    except NotADiffError:
        return []
