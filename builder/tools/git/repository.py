"""A bare repository, read through GitPython: objects, differences and ancestry.

Blobs, trees and commits come from one ``git cat-file --batch``, which GitPython keeps running:
``close`` ends it, and so do garbage collection and the end of this process.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.tools.git import command
from builder.tools.git.errors import GitError, failure, not_installed

if TYPE_CHECKING:
    from git import Git, Repo

SYMLINK = "120000"
GITLINK = "160000"
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
DIFF = (
    *("diff-tree", "-r", "-p", "--full-index", "--binary", "--no-renames", "--no-color"),
    *("--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--unified=3"),
    "--diff-algorithm=myers",
)
RAW_DIFF = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--abbrev=40")
LARGEST_KEPT = 1 << 16
"""Bytes of a command's output that are kept for the next time."""
MOST_ASKED = 100
"""Objects that are looked up one by one; for more, a new process is faster."""
HUNK_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a tree: mode ("100644", "160000", ...), object and path."""

    mode: str
    object: str
    path: str


class Repository:
    """The bare repository at ``folder``.  All methods raise ``GitError``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: Repo | None = None
        self._outputs: dict[tuple[str, ...], bytes] = {}
        self._ancestors: dict[tuple[str, str], bool] = {}
        self._present: set[str] = set()

    def create(self) -> None:
        """Make the repository, without the user's template, or complete it."""
        command.seal()
        from git import GitCommandNotFound, Repo

        self.close()
        try:
            Repo.init(
                self.folder, bare=True, quiet=True, template="", allow_unsafe_options=True
            ).close()
        except GitCommandNotFound as error:
            raise not_installed() from error

    @property
    def repo(self) -> Repo:
        """GitPython's view of it, opened at the first use; no command of it uses the network."""
        if self._opened is None:
            command.seal()
            from git import Repo
            from git.db import GitCmdObjectDB

            with self._translated("open"):
                repo = Repo(self.folder, odbt=GitCmdObjectDB)
            repo.git.update_environment(**command.OFFLINE)
            settings = [f"{name}={value}" for name, value in command.OFFLINE_SETTINGS.items()]
            repo.git.set_persistent_git_options(c=settings, git_dir=str(self.folder))
            weakref.finalize(self, repo.close)
            self._opened = repo
        if any(reader.poll() is not None for reader in self._readers()):
            self._opened.close()
        return self._opened

    def _readers(self) -> list[Git.AutoInterrupt]:
        """The processes that read objects."""
        if self._opened is None:
            return []
        git = self._opened.git
        return [reader for reader in (git.cat_file_all, git.cat_file_header) if reader is not None]

    def close(self) -> bool:
        """End the processes that read objects; return whether there were any.

        Objects that were there are looked up again.
        """
        self._present.clear()
        running = bool(self._readers())
        if self._opened is not None:
            self._opened.close()
        return running

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        """Raise what GitPython raises as ``GitError``, and end a process that was interrupted."""
        from configparser import Error as ConfigError

        from git.exc import GitCommandError, GitCommandNotFound, ODBError
        from git.exc import GitError as GitPythonError

        try:
            yield
        except GitCommandNotFound as error:
            raise not_installed() from error
        except GitCommandError as error:
            self.close()
            status = error.status if isinstance(error.status, int) else 128
            printed = str(error.stderr).removeprefix("\n  stderr: '").removesuffix("'")
            raise failure(self.folder, (name,), status, printed) from error
        except (GitPythonError, ODBError, ConfigError, ValueError, OSError) as error:
            self.close()
            why = f"an object of {self.folder} is missing or damaged, or the repository is"
            raise GitError(name, 128, f"{why}: {error}") from error
        except BaseException:
            # Part of an answer may be left in the pipe.  GitPython's stream, which the traceback
            # holds, still wants to read it: the pipe stays open.
            for process in [reader.proc for reader in self._readers() if reader.proc is not None]:
                process.kill()
                process.wait()
            raise

    def run(
        self,
        name: str,
        *arguments: str,
        index: Path | None = None,
        work_tree: Path | None = None,
    ) -> bytes:
        """The standard output of a git command, with another index or a work tree."""
        options: dict[str, Any] = {"work_tree": str(work_tree)} if work_tree else {}
        environment = {"GIT_INDEX_FILE": str(index)} if index else {}
        with self._translated(name):
            status, output, printed = getattr(self.repo.git(**options), name.replace("-", "_"))(
                *arguments,
                env=environment,
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
            )
        if status != 0:
            raise failure(self.folder, (name,), status, printed.strip())
        return bytes(output)

    def _constant(self, name: str, *arguments: str) -> bytes:
        """The output of a command whose arguments name objects in full: it is always the same."""
        key = (name, *arguments)
        output = self._outputs.get(key)
        if output is None:
            output = self.run(name, *arguments)
            if len(output) <= LARGEST_KEPT:
                self._outputs[key] = output
        return output

    def pipe(self, *arguments: str, stdin: bytes, index: Path | None = None) -> bytes:
        """The standard output of a git command that gets ``stdin``."""
        environment = {"GIT_INDEX_FILE": str(index)} if index else {}
        return command.run(self.folder, *arguments, stdin=stdin, environment=environment)[0]

    def text(self, name: str, *arguments: str) -> str:
        """The standard output of a git command as text, without the last line's end."""
        return self.run(name, *arguments).decode("utf-8", "surrogateescape").rstrip("\n")

    # Objects

    def tree_of(self, commit: str) -> str:
        """The tree of a commit."""
        with self._translated("cat-file"):
            return self.repo.tree(commit).hexsha

    def time_of(self, commit: str) -> int:
        """When a commit was committed, in seconds since 1970."""
        with self._translated("cat-file"):
            return int(self.repo.commit(commit).committed_date)

    def read(self, name: str) -> bytes:
        """The contents of a blob."""
        with self._translated("cat-file"):
            stream = self.repo.odb.stream(bytes.fromhex(name))
            kind, size, content = stream.type, stream.size, bytes(stream.read())
            del stream  # it takes the rest of the answer out of the pipe
            if kind != b"blob" or len(content) != size:
                raise ValueError(f"{name} is not a complete blob")
        return content

    def entry(self, tree: str, path: str) -> Item | None:
        """A file of a tree, or None if there is none."""
        if not path:
            return None
        command.seal()
        from git import Tree

        with self._translated("cat-file"):
            try:
                found = Tree(self.repo, self.repo.tree(tree).binsha, path="").join(path)
            except KeyError:
                return None
        if found.type != "blob":
            return None
        return Item(f"{found.mode:06o}", found.hexsha, path)

    def file(self, tree: str, path: str) -> bytes | None:
        """The contents of a file of a tree, or None if there is none."""
        item = self.entry(tree, path)
        return self.read(item.object) if item else None

    def items(self, tree: str, *paths: str) -> Iterator[Item]:
        """All entries below a tree, or those at ``paths``, listed by one command."""
        listing = self.run("ls-tree", "-r", "-z", "--full-tree", tree, "--", *paths)
        for line in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
            about, path = line.split("\t", 1)
            mode, _, name = about.split(" ")
            yield Item(mode, name, path)

    def _header(self, name: str) -> tuple[str, str] | None:
        """The full name and the kind of an object; None if there is no such object, or several."""
        with self._translated("cat-file"):
            try:
                full, kind, _ = self.repo.git.get_object_header(name)
            except ValueError as error:
                if "could not be resolved" in str(error):
                    return None
                raise  # the process has ended
        return os.fsdecode(full), os.fsdecode(kind)

    def blob_named(self, name: str) -> str | None:
        """The full name of a blob, perhaps abbreviated; None if there is no such blob."""
        full, kind = self._header(name) or ("", "")
        return full if kind == "blob" else None

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those objects that the repository does not have."""
        wanted = [name for name in dict.fromkeys(names) if name not in self._present]
        absent = self._absent(wanted)
        self._present.update(set(wanted).difference(absent))
        return absent

    def _absent(self, names: Sequence[str]) -> list[str]:
        if len(names) <= MOST_ASKED:
            return [name for name in names if self._header(name) is None]
        stdin = "".join(f"{name}\n" for name in names).encode()
        lines = self.pipe("cat-file", "--batch-check", stdin=stdin).decode().splitlines()
        return [name for name, line in zip(names, lines, strict=True) if line.endswith(" missing")]

    def symlinks(self, tree: str) -> dict[str, str]:
        """The symbolic links of a tree: target by path, except those without contents.

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

    def diffs_of(self, commits: Sequence[str], paths: Sequence[str]) -> dict[str, bytes]:
        """The diff of each of these commits, none of them a merge, below ``paths``."""
        names = "".join(f"{commit}\n" for commit in commits).encode()
        text = self.pipe(*DIFF, "--root", "--stdin", "--", *paths, stdin=names)
        parts = re.split(rb"(?m)^([0-9a-f]{40})\n", text)
        return {parts[at].decode(): parts[at + 1] for at in range(1, len(parts), 2)}

    def blobs_of(self, commits: Sequence[str], paths: Sequence[str]) -> list[str]:
        """The blobs that ``diffs_of`` reads."""
        names = "".join(f"{commit}\n" for commit in commits).encode()
        return _blobs(self.pipe(*RAW_DIFF, "--root", "--stdin", "--", *paths, stdin=names))

    def logged(self, *commits: str, paths: Sequence[str] = ()) -> list[str]:
        """The blobs, old and new, that a range of commits changed, below ``paths``.

        A merge changes what differs from any of its parents.
        """
        raw = self.run(
            *("log", "-m", "--full-history", "-z", "--raw", "--no-renames", "--abbrev=40"),
            *("--format=", *commits, "--", *paths),
        )
        return _blobs(raw)

    # Ancestry

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether ``older`` is ``newer`` or one of its ancestors; both are full names."""
        pair = (older, newer)
        if pair not in self._ancestors:
            with self._translated("merge-base"):
                commits = self.repo.commit(older), self.repo.commit(newer)
                self._ancestors[pair] = self.repo.is_ancestor(*commits)
        return self._ancestors[pair]

    def merge_bases(self, one: str, other: str) -> list[str]:
        """The best common ancestors of two commits (git-merge-base(1)); empty if unrelated."""
        with self._translated("merge-base"):
            return [commit.hexsha for commit in self.repo.merge_base(one, other, all=True)]

    def merge_of(self, commit: str, branch: str) -> str | None:
        """The merge that brought ``commit`` into ``branch``; None if no merge did.

        It is the first commit, on the branch's first-parent line, that descends from ``commit``.
        """
        path = ("rev-list", "--first-parent", "--ancestry-path", "--reverse", "--parents")
        found = self.text(*path, f"{commit}..{branch}").splitlines()
        if not found:
            return None
        merge, parent, *_ = found[0].split()
        return None if parent == commit else merge


def _blobs(listing: bytes) -> list[str]:
    """The blobs in the output of ``git log -z --raw``, old and new."""
    pairs = _raw(listing.lstrip(b"\0"))
    return [item.object for pair in pairs for item in pair if item.mode != GITLINK]


def _raw(listing: bytes) -> Iterator[tuple[Item, Item]]:
    """The output of ``git diff-tree -z --raw`` (git-diff-tree(1), "Raw output format")."""
    fields = iter(listing.decode("utf-8", "surrogateescape").split("\0"))
    for about in fields:
        if about.startswith(":"):  # else a commit's own name, or the blank between two commits
            old_mode, new_mode, old, new, _ = about[1:].split(" ")
            path = next(fields)
            yield Item(old_mode, old, path), Item(new_mode, new, path)
