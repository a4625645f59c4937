"""git bisect without a work tree, on commits whose contents need not be mirrored.

git-bisect(1) halves the range, avoids skipped commits and keeps its state in refs.  With
``--no-checkout`` it checks nothing out, and BISECT_HEAD is the next commit to evaluate.  At the end
it wants to show the first bad commit, and fails if its contents are missing: whether a bisection
has ended is therefore read from its refs, not from its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from builder.sources.errors import GitError
from builder.sources.scratch import Scratch

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
