"""A throw-away repository that sees the objects of mirrors, and in which trees are made.

Trees are put together in an index of their own, without any file on disk: submodules take the
places that their commits are pinned to, patches are applied, and what comes out has git's own
identity.  It is no partial clone: what is not there is an error, never fetched in passing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from builder.errors import FetchError
from builder.tools.git import executable as git
from builder.tools.git.executable import GitError

LINK = "120000"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
# First in rank (gitattributes(5)): no attribute of a tree may change what is written or read.
ATTRIBUTES = "* -text !eol !ident !filter !working-tree-encoding !diff !merge !export-subst\n"
DIFF = (
    *("diff-tree", "-r", "-p", "--full-index", "--binary", "--no-renames", "--no-color"),
    *("--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--unified=3"),
    "--diff-algorithm=myers",
)
OFFSET = re.compile(r"Hunk #(\d+) succeeded at (\d+) \(offset (-?\d+) lines?\)")
LINES = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
CHECKING = re.compile(r"Checking patch (.*)\.\.\.")


class NotApplicableError(Exception):
    """A diff does not fit a tree; the text is what git said."""


class NoTreeError(Exception):
    """A directory holds what git keeps in no tree; the text says what."""


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a tree: mode ("100644", "160000", ...), object and path."""

    mode: str
    object: str
    path: str


@dataclass(frozen=True, slots=True)
class Application:
    """A diff that was applied: the new tree, and how its hunks found their places."""

    tree: str
    offsets: tuple[tuple[str, int, int], ...]
    """Path, number of the hunk, lines that it moved by."""
    merged: bool
    """Every file went through a three-way merge."""


class Scratch:
    """A new bare repository at ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        git.initialize(folder)
        (folder / "info").mkdir(exist_ok=True)
        (folder / "info" / "attributes").write_text(ATTRIBUTES)
        self._seen: list[str] = []

    def see(self, objects: Iterable[Path]) -> None:
        """See what these directories of objects hold, now and later."""
        for folder in objects:
            if str(folder) not in self._seen and folder.is_dir():
                self._seen.append(str(folder))
        alternates = self.folder / "objects" / "info" / "alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_text("".join(f"{path}\n" for path in self._seen))

    def run(self, *arguments: str, stdin: bytes = b"", index: Path | None = None) -> bytes:
        """git on this repository; raises ``GitError``."""
        environment = {"GIT_INDEX_FILE": str(index)} if index else {}
        return git.run(self.folder, *arguments, stdin=stdin, environment=environment)[0]

    def text(self, *arguments: str) -> str:
        """What git prints on this repository, without the last line's end."""
        return self.run(*arguments).decode("utf-8", "surrogateescape").rstrip("\n")

    def tree_of(self, commit: str) -> str:
        """The tree of a commit."""
        return self.text("rev-parse", "--verify", f"{commit}^{{tree}}")

    def items(self, tree: str, *paths: str) -> Iterator[Item]:
        """All entries below a tree, or those at ``paths``."""
        listing = self.run("ls-tree", "-r", "-z", "--full-tree", tree, "--", *paths)
        for line in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
            about, path = line.split("\t", 1)
            mode, _, name = about.split(" ")
            yield Item(mode, name, path)

    def read(self, name: str) -> bytes:
        """The contents of a blob."""
        return self.run("cat-file", "blob", name)

    def blob(self, path: str, content: bytes) -> Item:
        """A new file, to be placed in a tree."""
        name = self.run("hash-object", "-w", "--stdin", stdin=content).decode().strip()
        return Item("100644", name, path)

    def entry(self, tree: str, path: str) -> Item | None:
        """A file of a tree, or None where there is none."""
        found = self.items(tree, path) if path else ()
        return next((i for i in found if i.path == path and i.mode != "160000"), None)

    def file(self, tree: str, path: str) -> bytes | None:
        """The contents of a file of a tree, or None where there is none."""
        item = self.entry(tree, path)
        return self.read(item.object) if item else None

    def blob_named(self, name: str) -> str | None:
        """The full name of a blob, perhaps abbreviated; None where it is not there, or not one."""
        about = self.run("cat-file", "--batch-check", stdin=f"{name}\n".encode()).decode().split()
        return about[0] if about[1:2] == ["blob"] else None

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Those objects that are nowhere to be seen."""
        asked = list(dict.fromkeys(names))
        listing = self.run(
            "cat-file", "--batch-check", stdin="".join(f"{name}\n" for name in asked).encode()
        )
        lines = listing.decode().splitlines()
        return [name for name, line in zip(asked, lines, strict=True) if line.endswith(" missing")]

    @contextmanager
    def _index(self, tree: str) -> Iterator[Path]:
        index = self.folder / f"index-{uuid4().hex}"
        try:
            self.run("read-tree", tree, index=index)
            yield index
        finally:
            index.unlink(missing_ok=True)

    def compose(self, tree: str, parts: Mapping[str, str]) -> str:
        """``tree`` with other trees in the places of its submodules."""
        if not parts:
            return tree
        changes = []
        for path, part in parts.items():
            changes.append(f"0 {'0' * 40}\t{path}\0")
            for item in self.items(part):
                changes.append(f"{item.mode} {item.object}\t{path}/{item.path}\0")
        with self._index(tree) as index:
            told = "".join(changes).encode("utf-8", "surrogateescape")
            self.run("update-index", "-z", "--index-info", stdin=told, index=index)
            return self._written(index)

    def place(self, tree: str, found: Mapping[str, Item]) -> str:
        """``tree`` with objects of other trees, by the path that they get."""
        told = "".join(f"{item.mode} {item.object}\t{path}\0" for path, item in found.items())
        with self._index(tree) as index:
            stdin = told.encode("utf-8", "surrogateescape")
            self.run("update-index", "--add", "-z", "--index-info", stdin=stdin, index=index)
            return self._written(index)

    def _written(self, index: Path) -> str:
        # Objects of a partial clone may be absent; whatever is written out is read before.
        return self.run("write-tree", "--missing-ok", index=index).decode().strip()

    def take(self, folder: Path) -> str:
        """The tree of a directory on disk, every file of it, ignored by .gitignore or not.

        A repository at its top (``.git``) is no part of it.  Raises ``NoTreeError`` for one
        further down, and for what git does not store: a device, a file that cannot be read.
        """
        for parent, folders, files in os.walk(folder):
            if ".git" in (*folders, *files) and Path(parent) != folder:
                where = Path(parent).relative_to(folder)
                raise NoTreeError(f"{where} is a repository of its own: it holds .git")
        index = self.folder / f"index-{uuid4().hex}"
        try:
            self.run(
                f"--work-tree={folder}", "add", "--all", "--force", "--", str(folder), index=index
            )
            return self._written(index)
        except GitError as error:
            raise NoTreeError(error.said) from error
        finally:
            index.unlink(missing_ok=True)

    def apply(
        self, tree: str, diff: bytes, *, fuzz: int = 0, three_way: bool = False, back: bool = False
    ) -> Application:
        """Apply a diff to a tree; ``back`` takes it out instead.

        Raises ``NotApplicableError``.
        """
        options = ["--cached", "--verbose", "--whitespace=nowarn"]
        options += [f"-C{3 - fuzz}"] if fuzz else []
        options += ["--3way"] if three_way else []
        options += ["--reverse"] if back else []
        with self._index(tree) as index:
            try:
                _, said = git.run(
                    self.folder,
                    "apply",
                    *options,
                    "-",
                    stdin=diff,
                    environment={"GIT_INDEX_FILE": str(index)},
                )
            except GitError as error:
                raise NotApplicableError(error.said) from error
            return Application(
                self._written(index),
                tuple(_offsets(said)),
                merged=three_way and "Falling back to direct" not in said,
            )

    def diff(self, old: str, new: str) -> bytes:
        """The diff between two trees or commits, with full object names and binary contents."""
        return self.run(*DIFF, old, new)

    def changes(self, old: str, new: str) -> list[tuple[Item, Item]]:
        """What differs between two trees or commits: the old and the new entry of each path."""
        listing = self.run(
            "diff-tree", "-r", "-z", "--raw", "--no-renames", "--abbrev=40", old, new
        )
        return list(_raw(listing))

    def line_changes(self, old: str, new: str) -> list[tuple[int, int, int, int]]:
        """What differs between two blobs: start (from 0) and number of lines, old and new."""
        text = self.text(
            *("diff", "--unified=0", "--diff-algorithm=myers", "--text", "--no-color"),
            *("--no-ext-diff", "--no-textconv", old, new),
        )
        found = []
        for line in text.split("\n"):
            header = LINES.match(line)
            if header:
                a, n, b, m = (1 if part is None else int(part) for part in header.groups())
                # Of no lines the one before is named: git-diff(1), "unified format".
                found.append((a - (n > 0), n, b - (m > 0), m))
        return found

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether ``older`` is ``newer`` or one of its ancestors."""
        try:
            self.run("merge-base", "--is-ancestor", older, newer)
        except GitError as error:
            if error.status == 1:
                return False
            raise
        return True

    def merge_base(self, one: str, other: str) -> str | None:
        """The best common ancestor of two commits, or None."""
        try:
            return self.text("merge-base", one, other)
        except GitError as error:
            if error.status == 1:
                return None
            raise

    def merge_of(self, commit: str, branch: str) -> str | None:
        """The commit by which ``commit`` came into ``branch``: None where it is of its own line.

        It is the first one, on the branch's own line, that descends from ``commit``.
        """
        path = ("rev-list", "--first-parent", "--ancestry-path", "--reverse", "--parents")
        found = self.text(*path, f"{commit}..{branch}").splitlines()
        if not found:
            return None
        merge, parent, *_ = found[0].split()
        return None if parent == commit else merge

    def logged(self, *commits: str, paths: Sequence[str] = ()) -> list[str]:
        """The blobs, old and new, that a range of commits changed, below ``paths``.

        A merge changes what differs from any of its parents.
        """
        raw = self.run(
            *("log", "-m", "--full-history", "-z", "--raw", "--no-renames", "--abbrev=40"),
            *("--format=", *commits, "--", *paths),
        )
        return _blobs(raw)

    def diffs_of(self, commits: Sequence[str], paths: Sequence[str]) -> dict[str, bytes]:
        """What each of these commits, none of them a merge, changes below ``paths``."""
        named = "".join(f"{commit}\n" for commit in commits).encode()
        text = self.run(*DIFF, "--root", "--stdin", "--", *paths, stdin=named)
        parts = re.split(rb"(?m)^([0-9a-f]{40})\n", text)
        return {parts[at].decode(): parts[at + 1] for at in range(1, len(parts), 2)}

    def blobs_of(self, commits: Sequence[str], paths: Sequence[str]) -> list[str]:
        """The blobs that ``diffs_of`` reads."""
        named = "".join(f"{commit}\n" for commit in commits).encode()
        raw = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--abbrev=40", "--root")
        return _blobs(self.run(*raw, "--stdin", "--", *paths, stdin=named))

    def export(self, tree: str, target: Path) -> None:
        """Write a tree to the new directory ``target``, byte for byte."""
        target.mkdir()
        with self._index(tree) as index:
            self.run(f"--work-tree={target}", "checkout-index", "--all", index=index)

    def links(self, tree: str) -> dict[str, str]:
        """The symbolic links of a tree: target by path; without those whose contents are not there.

        Only a tree of a history lacks contents; what is built from has all of them.
        """
        links = [item for item in self.items(tree) if item.mode == LINK]
        absent = set(self.lacks(item.object for item in links))
        there = [item for item in links if item.object not in absent]
        return {item.path: os.fsdecode(self.read(item.object)) for item in there}


def _offsets(said: str) -> Iterator[tuple[str, int, int]]:
    path = ""
    for line in said.splitlines():
        checking = CHECKING.match(line)
        if checking:
            path = checking[1]
        moved = OFFSET.match(line)
        if moved:
            yield path, int(moved[1]), int(moved[3])


def _blobs(listing: bytes) -> list[str]:
    """The blobs that the output of ``git log -z --raw`` names, old and new."""
    pairs = _raw(listing.lstrip(b"\0"))
    return [item.object for pair in pairs for item in pair if item.mode != "160000"]


def _raw(listing: bytes) -> Iterator[tuple[Item, Item]]:
    """The output of ``git diff-tree -z --raw`` (git-diff-tree(1), "Raw output format")."""
    fields = listing.decode("utf-8", "surrogateescape").split("\0")
    while len(fields) > 1:
        about, path, *fields = fields
        if not about.startswith(":"):  # a commit's own name, or the blank between two commits
            fields = [path, *fields]
            continue
        old_mode, new_mode, old, new, _ = about[1:].split(" ")
        yield Item(old_mode, old, path), Item(new_mode, new, path)


def submodule_urls(repository: Scratch, tree: str) -> dict[str, str]:
    """What .gitmodules of a tree says: URL by path.

    gitmodules(5).  Raises ``FetchError`` when it is not of git's configuration format.
    """
    content = repository.file(tree, ".gitmodules")
    if not content:
        return {}
    try:
        listing = repository.run(
            *("config", "--file", "-", "--null", "--get-regexp", r"^submodule\..*\.(path|url)$"),
            stdin=content,
        )
    except GitError as error:
        if error.status == 1:
            return {}
        raise FetchError(".gitmodules cannot be read", error.said) from error
    found: dict[str, dict[str, str]] = {}
    for line in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        key, _, value = line.partition("\n")
        section, _, field = key.rpartition(".")
        found.setdefault(section, {})[field] = value
    return {m["path"]: m["url"] for m in found.values() if "path" in m and "url" in m}


def relative_url(url: str, parent: str) -> str:
    """A submodule's URL, where it starts with ./ or ../, from its parent's (git-submodule(1))."""
    if not url.startswith(("./", "../")):
        return url
    scheme, _, rest = parent.rstrip("/").partition("://")
    parts: Sequence[str] = rest.split("/")
    for step in url.split("/"):
        if step == "..":
            parts = parts[:-1]
        elif step not in {".", ""}:
            parts = [*parts, step]
    return f"{scheme}://{'/'.join(parts)}"
