"""A bare repository: objects, differences and ancestry.

Blobs, trees and commits come from one ``git cat-file --batch``, which is kept running: ``close``
ends it, and so do garbage collection and the end of this process.
"""

from __future__ import annotations

import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar
from uuid import uuid4

from builder.core.errors import FetchError
from builder.sources import git
from builder.sources.git import GitError, not_installed

if TYPE_CHECKING:
    from builder.sources.objects import ObjectReader

T = TypeVar("T")
DIRECTORY = "040000"
SYMLINK = "120000"
GITLINK = "160000"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
DIFF = (
    *("diff-tree", "-r", "-p", "--full-index", "--binary", "--no-renames", "--no-color"),
    *("--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--unified=3"),
    "--diff-algorithm=myers",
)
RAW_DIFF = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--abbrev=40")
READING = {"checkout-index", "diff", "diff-tree", "log", "ls-tree", "merge-base", "read-tree"}
READING |= {"rev-list", "write-tree"}
"""The commands that read objects: with a status above 1 some object is missing or damaged."""
LARGEST_KEPT = 1 << 16
"""Bytes of a command's output that are kept for the next time."""
HUNK_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a tree: mode ("100644", "160000", ...), object and path."""

    mode: str
    object: str
    path: str


class GitRepository:
    """The bare repository at ``folder``.  All methods raise ``GitError``.

    ``heal`` is called when an object cannot be read; if it returns True, it is read once more.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heal: Callable[[], bool] = lambda: False
        self._reader: ObjectReader | None = None
        self._outputs: dict[tuple[str, ...], bytes] = {}
        self._present: set[str] = set()

    def create(self) -> None:
        """Make the repository, without the user's template, or complete it."""
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run("init", "--bare", "--quiet", "--template=")

    @property
    def reader(self) -> ObjectReader:
        """The reader of objects, opened at the first use."""
        if self._reader is None:
            try:
                from builder.sources.objects import ObjectReader
            except ImportError as error:
                raise not_installed() from error
            self._reader = ObjectReader(self.folder)
            weakref.finalize(self, self._reader.clear_cache)
        if any(process.poll() is not None for process in self._reader.processes):
            self._reader.clear_cache()
        return self._reader

    def close(self) -> bool:
        """End the processes that read objects; return whether there were any.

        Objects that were there are looked up again.
        """
        self._present.clear()
        if self._reader is None:
            return False
        running = any(True for _ in self._reader.processes)
        self._reader.clear_cache()
        return running

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        index: Path | None = None,
        work_tree: Path | None = None,
    ) -> bytes:
        """The standard output of a git command, with another index or a work tree."""
        environment = {"GIT_INDEX_FILE": str(index)} if index else {}
        if work_tree:
            environment["GIT_WORK_TREE"] = str(work_tree)
        try:
            return git.run(self.folder, *arguments, stdin=stdin, environment=environment)[0]
        except GitError as error:
            if error.status == 1 or arguments[0] not in READING or not self.heal():
                raise
        return git.run(self.folder, *arguments, stdin=stdin, environment=environment)[0]

    def _constant(self, *arguments: str) -> bytes:
        """The output of a command whose arguments name objects in full: it is always the same."""
        output = self._outputs.get(arguments)
        if output is None:
            output = self.run(*arguments)
            if len(output) <= LARGEST_KEPT:
                self._outputs[arguments] = output
        return output

    def text(self, *arguments: str) -> str:
        """The standard output of a git command as text, without the last line's end."""
        return self.run(*arguments).decode("utf-8", "surrogateescape").rstrip("\n")

    # Objects

    def _read(self, read: Callable[[ObjectReader], T], *, again: bool = True) -> T:
        reader = self.reader
        try:
            return read(reader)
        except (ValueError, OSError) as error:
            self.close()
            if again and self.heal():
                return self._read(read, again=False)
            why = f"an object of {self.folder} is missing or damaged, or the repository is"
            raise GitError("cat-file", 128, f"{why}: {error}") from error
        except BaseException:
            # Part of an answer may be left in the pipe.  GitPython's stream, which the traceback
            # holds, still wants to read it: the pipe stays open.
            for process in reader.processes:
                process.kill()
                process.wait()
            raise

    def tree_of(self, commit: str) -> str:
        """The tree of a commit."""
        return self._read(lambda reader: reader.required(f"{commit}^{{tree}}"))[0]

    def time_of(self, commit: str) -> int:
        """When a commit was committed, in seconds since 1970."""
        return int(self.text("log", "--no-walk", "--format=%ct", commit))

    def read(self, name: str) -> bytes:
        """The contents of a blob."""
        return self._read(lambda reader: reader.content(name, "blob"))

    def entry(self, tree: str, path: str) -> Item | None:
        """A file of a tree, or None if there is none."""
        mode, name = DIRECTORY, tree
        for part in path.split("/"):
            if mode != DIRECTORY:
                return None
            mode, name = self._entries(name).get(part, ("", ""))
        return Item(mode, name, path) if mode not in {"", DIRECTORY, GITLINK} else None

    def _entries(self, tree: str) -> dict[str, tuple[str, str]]:
        return self._read(lambda reader: reader.entries(tree))

    def file(self, tree: str, path: str) -> bytes | None:
        """The contents of a file of a tree, or None if there is none."""
        item = self.entry(tree, path)
        return self.read(item.object) if item else None

    def items(self, tree: str, *paths: str) -> Iterator[Item]:
        """All entries below a tree, or the entries at ``paths``, listed by one command."""
        listing = self.run("ls-tree", "-r", "-z", "--full-tree", tree, "--", *paths)
        for line in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
            about, path = line.split("\t", 1)
            mode, _, name = about.split(" ")
            yield Item(mode, name, path)

    def _header(self, name: str) -> tuple[str, str] | None:
        """The full name and the kind of an object; None if there is no such object, or several."""
        return self._read(lambda reader: reader.header(name))

    def blob_named(self, name: str) -> str | None:
        """The full name of a blob, perhaps abbreviated; None if there is no such blob."""
        full, kind = self._header(name) or ("", "")
        return full if kind == "blob" else None

    def missing(self, names: Iterable[str]) -> list[str]:
        """The objects that the repository lacks."""
        wanted = [name for name in dict.fromkeys(names) if name not in self._present]
        absent = [name for name in wanted if self._header(name) is None]
        self._present.update(set(wanted).difference(absent))
        return absent

    def symlinks(self, tree: str) -> dict[str, str]:
        """The symbolic links of a tree: target by path, without links whose contents are absent.

        Only a tree of a partial clone lacks contents; the source of a build is complete.
        """
        links = [item for item in self.items(tree) if item.mode == SYMLINK]
        absent = set(self.missing(item.object for item in links))
        present = [item for item in links if item.object not in absent]
        return {item.path: os.fsdecode(self.read(item.object)) for item in present}

    # Differences.  Not GitPython's ``Diff``: it wants a checked-out HEAD to name submodules.
    # Trees, commits and blobs are given by their full names, so that outputs can be kept.

    def diff(self, old: str, new: str) -> bytes:
        """The diff between two trees or commits, with full object names and binary contents."""
        return self._constant(*DIFF, old, new)

    def changes(self, old: str, new: str) -> list[tuple[Item, Item]]:
        """The old and the new entry of each path that differs between two trees or commits."""
        return list(_raw(self._constant(*RAW_DIFF, old, new)))

    def line_changes(self, old: str, new: str) -> list[tuple[int, int, int, int]]:
        """The differences of two blobs: start (from 0) and number of lines, old and new."""
        text = self._constant(
            *("diff", "--unified=0", "--diff-algorithm=myers", "--text", "--no-color"),
            *("--no-ext-diff", "--no-textconv", old, new),
        )
        found = []
        for line in text.decode("utf-8", "surrogateescape").split("\n"):
            header = HUNK_HEADER.match(line)
            if header:
                a, n, b, m = (1 if part is None else int(part) for part in header.groups())
                # An empty range names the line before it: git-diff(1), "unified format".
                found.append((a - (n > 0), n, b - (m > 0), m))
        return found

    def diffs_of(
        self, spans: Iterable[tuple[str, str]], paths: Sequence[str]
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """The diff to each commit from another one, its parent, below ``paths``; by the commit.

        And its git-patch-id(1), if it has any line.  The parent of a root commit is empty.
        """
        names = "".join(f"{commit} {parent}".rstrip() + "\n" for commit, parent in spans).encode()
        text = self.run(*DIFF, "--root", "--stdin", "--", *paths, stdin=names)
        parts = re.split(rb"(?m)^([0-9a-f]{40})\n", text)
        texts = {parts[at].decode(): parts[at + 1] for at in range(1, len(parts), 2)}
        listing = self.run("patch-id", "--stable", stdin=text).decode()
        return texts, {commit: name for name, commit in map(str.split, listing.splitlines())}

    def patch_id(self, text: bytes) -> str:
        """The git-patch-id(1) of a diff; empty if it has no line."""
        return self.run("patch-id", "--stable", stdin=text).decode().partition(" ")[0]

    def blobs_of(self, commit: str, parent: str = "") -> list[str]:
        """The blobs, old and new, that a commit changed, since ``parent`` if it is given."""
        pairs: Iterable[tuple[Item, Item]] = (
            self.changes(parent, commit)
            if parent
            else _raw(self._constant(*RAW_DIFF, "--root", "--no-commit-id", commit))
        )
        return [item.object for pair in pairs for item in pair if item.mode != GITLINK]

    # Ancestry

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether ``older`` is ``newer`` or one of its ancestors."""
        return self._merge_base("--is-ancestor", older, newer) is not None

    def merge_bases(self, one: str, other: str) -> list[str]:
        """The best common ancestors of two commits (git-merge-base(1)); empty if unrelated."""
        return (self._merge_base("--all", one, other) or "").splitlines()

    def _merge_base(self, *arguments: str) -> str | None:
        """The output of ``git merge-base``; None where its answer is no."""
        try:
            return self.text("merge-base", *arguments)
        except GitError as error:
            if error.status == 1:
                return None
            raise

    def merge_of(self, commit: str, branch: str) -> str | None:
        """The merge that brought ``commit`` into ``branch``; None if no merge did.

        It is the first commit, on the branch's first-parent line, that descends from ``commit``.
        """
        listing = self.text("rev-list", "--ancestry-path", "--parents", f"{commit}..{branch}")
        first = dict(line.split(" ")[:2] for line in listing.splitlines())
        merge, parent = "", branch
        while parent in first:
            merge, parent = parent, first[parent]
        return merge if merge and parent != commit else None


def _raw(listing: bytes) -> Iterator[tuple[Item, Item]]:
    """The output of ``git diff-tree -z --raw`` (git-diff-tree(1), "Raw output format")."""
    fields = iter(listing.decode("utf-8", "surrogateescape").split("\0"))
    for about in fields:
        if about.startswith(":"):  # else a commit's own name, or the blank between two commits
            old_mode, new_mode, old, new, _ = about[1:].split(" ")
            path = next(fields)
            yield Item(old_mode, old, path), Item(new_mode, new, path)


# A temporary repository that sees the objects of mirrors, and in which trees are made.
#
# Trees are put together in an index of their own, without any file on disk: submodules take the
# places that their commits are pinned to, patches are applied, and the result has git's own
# identity.  It is no partial clone: a missing object is an error, never fetched implicitly.

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


# The submodules of a tree: where .gitmodules says that they come from.


def submodule_urls(repository: GitRepository, tree: str) -> dict[str, str]:
    """The URLs in .gitmodules of a tree, by path (gitmodules(5)).

    git parses it from standard input, so that nothing in it takes effect.  Raises ``FetchError``
    if it is not in git's configuration format.
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
        raise FetchError(".gitmodules cannot be read", error.why) from error
    found: dict[str, dict[str, str]] = {}
    for line in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        key, _, value = line.partition("\n")
        section, _, field = key.rpartition(".")
        found.setdefault(section, {})[field] = value
    return {m["path"]: m["url"] for m in found.values() if "path" in m and "url" in m}


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
