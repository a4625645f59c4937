"""A temporary repository that sees the objects of mirrors, and in which trees are made.

Trees are put together in an index of their own, without any file on disk: submodules take the
places that their commits are pinned to, patches are applied, and the result has git's own
identity.  It is no partial clone: a missing object is an error, never fetched implicitly.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from builder.sources import git
from builder.sources.errors import GitError
from builder.sources.repository import GitRepository, Item

# First in rank (gitattributes(5)): no attribute of a tree may change a byte of a file.
ATTRIBUTES = "* -text !eol !ident !filter !working-tree-encoding !diff !merge !export-subst\n"
OFFSET = re.compile(r"Hunk #(\d+) succeeded at (\d+) \(offset (-?\d+) lines?\)")
CHECKING = "Checking patch "


class NotApplicableError(Exception):
    """A diff does not fit a tree; the text is git's reason."""


class NoTreeError(Exception):
    """A directory has a file that git cannot store in a tree; the text names it."""


@dataclass(frozen=True, slots=True)
class CountedFile:
    """A file of a diff as git reads it: the numbers of added and removed lines (None: binary)."""

    path: str
    counts: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Application:
    """An applied diff: the new tree, what git read, and the hunks that moved."""

    tree: str
    files: tuple[CountedFile, ...]
    offsets: tuple[tuple[int, int, int], ...]
    """Index of the file, number of the hunk, lines that it moved by."""


class Scratch(GitRepository):
    """A new bare repository at ``folder``, or the one there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.create()
        (folder / "info").mkdir(exist_ok=True)
        (folder / "info" / "attributes").write_text(ATTRIBUTES)
        self._alternates: list[str] = []

    def add_objects(self, folders: Iterable[Path]) -> None:
        """Read objects in these directories too, now and later (gitrepository-layout(5))."""
        new = [str(each) for each in folders if each.is_dir()]
        if set(new) <= set(self._alternates):
            return
        self._alternates = list(dict.fromkeys([*self._alternates, *new]))
        alternates = self.folder / "objects" / "info" / "alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_text("".join(f"{path}\n" for path in self._alternates))
        self.close()  # a running reader knows only the alternates of its start

    def blob(self, path: str, content: bytes) -> Item:
        """A new file, to be placed in a tree."""
        name = self.run("hash-object", "-w", "--stdin", stdin=content).decode().strip()
        return Item("100644", name, path)

    @contextmanager
    def _index(self, tree: str) -> Iterator[Path]:
        """A new index with a tree, which is read once."""
        index, kept = (self.folder / f"index-{name}" for name in (uuid4().hex, f"of-{tree}"))
        try:
            if not kept.exists():
                self.run("read-tree", tree, index=index)
                index.replace(kept)
            shutil.copyfile(kept, index)
            yield index
        finally:
            index.unlink(missing_ok=True)

    def with_submodules(self, tree: str, parts: Mapping[str, str]) -> str:
        """``tree`` with other trees in the places of its submodules."""
        if not parts:
            return tree
        entries = []
        for path, part in parts.items():
            entries.append(f"0 {'0' * 40}\t{path}\0")
            for item in self.items(part):
                entries.append(f"{item.mode} {item.object}\t{path}/{item.path}\0")
        return self._with_entries(tree, entries)

    def with_items(self, tree: str, found: Mapping[str, Item]) -> str:
        """``tree`` with objects of other trees, by their new path."""
        entries = [f"{item.mode} {item.object}\t{path}\0" for path, item in found.items()]
        return self._with_entries(tree, entries)

    def _with_entries(self, tree: str, entries: list[str]) -> str:
        stdin = "".join(entries).encode("utf-8", "surrogateescape")
        with self._index(tree) as index:
            self.run("update-index", "--add", "-z", "--index-info", stdin=stdin, index=index)
            return self._write_tree(index)

    def _write_tree(self, index: Path) -> str:
        # Objects of a partial clone may be absent; exported files are read before.
        return self.run("write-tree", "--missing-ok", index=index).decode().strip()

    def tree_from(self, folder: Path) -> str:
        """The tree of a directory on disk, with every file, ignored by .gitignore or not.

        A repository at its top (``.git``) is left out.  Raises ``NoTreeError`` for one further
        down, for a device, and for a file that cannot be read.
        """
        for parent, folders, files in os.walk(folder):
            if ".git" in (*folders, *files) and Path(parent) != folder:
                where = Path(parent).relative_to(folder)
                raise NoTreeError(f"{where} is a repository of its own: it holds .git")
        index = self.folder / f"index-{uuid4().hex}"
        try:
            self.run("add", "--all", "--force", "--", str(folder), index=index, work_tree=folder)
            return self._write_tree(index)
        except GitError as error:
            raise NoTreeError(error.why) from error
        finally:
            index.unlink(missing_ok=True)

    def apply(self, tree: str, diff: bytes, *, back: bool = False) -> Application:
        """Apply a diff to a tree; ``back`` reverts it instead."""
        options = ["--cached", "--verbose", "--whitespace=nowarn", "--numstat", "-z", "--apply"]
        options += ["--reverse"] if back else []
        with self._index(tree) as index:
            environment = {"GIT_INDEX_FILE": str(index)}
            try:
                counted, messages = git.run(
                    self.folder, "apply", *options, "-", stdin=diff, environment=environment
                )
            except GitError as error:
                raise NotApplicableError(error.why) from error
            tree = self._write_tree(index)
            return Application(tree, tuple(_counted(counted)), tuple(_offsets(messages)))

    def files_of(self, diff: bytes) -> list[CountedFile]:
        """The files of a diff, as git reads it.  Raises ``NotApplicableError``."""
        try:
            return list(_counted(self.run("apply", "--numstat", "-z", "-", stdin=diff)))
        except GitError as error:
            raise NotApplicableError(error.why) from error

    def diff_of_mail(self, mail: bytes) -> bytes:
        """The diff in a mail, decoded, with the lines before it: what ``git am`` applies."""
        file = self.folder / f"mail-{uuid4().hex}"
        try:
            options = ("-n", "--no-scissors", "--quoted-cr=nowarn")
            self.run("mailinfo", *options, os.devnull, str(file), stdin=mail)
            return file.read_bytes()
        finally:
            file.unlink(missing_ok=True)

    def export(self, tree: str, target: Path) -> None:
        """Write a tree to the new directory ``target``, byte for byte."""
        target.mkdir()
        with self._index(tree) as index:
            self.run("checkout-index", "--all", "--force", index=index, work_tree=target)


def _counted(listing: bytes) -> Iterator[CountedFile]:
    for line in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        added, removed, path = line.split("\t", 2)
        yield CountedFile(path, None if added == "-" else (int(added), int(removed)))


def _offsets(messages: str) -> Iterator[tuple[int, int, int]]:
    index = -1
    for line in messages.splitlines():
        index += line.startswith(CHECKING)
        moved = OFFSET.match(line)
        if moved:
            yield index, int(moved[1]), int(moved[3])
