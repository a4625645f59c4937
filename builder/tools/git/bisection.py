"""git bisect where there is no work tree, and where commits are there without their contents.

git-bisect(1) halves, goes around skipped commits and keeps what it is told in refs; of a bare
repository it checks nothing out (``--no-checkout``) and says in BISECT_HEAD which commit is next.
At the end it would show the first bad commit, reads contents for that, and fails where they are
not there: whether it is at its end is read from its refs, never from what it prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from builder.tools.git.executable import GitError
from builder.tools.git.scratch import Scratch

Word = Literal["good", "bad", "skip"]
BAD = "refs/bisect/bad"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as people know it; ``date`` is the committer's day (YYYY-MM-DD)."""

    name: str
    date: str
    author: str
    subject: str

    @property
    def short(self) -> str:
        """The first nine digits and the subject."""
        return f"{self.name[:9]} {self.subject}"


class Bisection:
    """Looks for the first bad commit between ``bad`` and ``good``, whose histories are there.

    ``first_parent`` follows only the first parent of each merge.  Raises ``GitError``.
    """

    def __init__(
        self, scratch: Scratch, good: Iterable[str], bad: str, *, first_parent: bool = False
    ) -> None:
        self._scratch = scratch
        self._line = ["--first-parent"] if first_parent else []
        scratch.run("update-ref", "--no-deref", "HEAD", bad)  # git bisect wants a HEAD
        self._tell("start", "--no-checkout", *self._line, bad, *good, "--")

    def mark(self, word: Word, commit: str) -> None:
        """Tell what a commit is.  Raises ``GitError`` where git cannot go on from there."""
        self._tell(word, commit)

    def _tell(self, *arguments: str) -> None:
        try:
            self._scratch.run("bisect", *arguments)
        except GitError:
            if not self._ended():
                raise

    def _ended(self) -> bool:
        try:
            return not self.open()
        except GitError:
            return False  # it did not even begin

    def candidates(self) -> list[str]:
        """The commits that may be the first bad one, oldest first: the last one is known bad."""
        order = ("rev-list", "--topo-order", "--reverse", *self._line)
        listing = self._scratch.text(*order, BAD, "--not", "--glob=refs/bisect/good-*")
        return listing.splitlines()

    def open(self) -> list[str]:
        """Of the candidates those that are neither known bad nor skipped."""
        listing = self._scratch.text("for-each-ref", "--format=%(objectname)", "refs/bisect/skip-*")
        apart = {*listing.splitlines(), self._scratch.text("rev-parse", "--verify", BAD)}
        return [commit for commit in self.candidates() if commit not in apart]

    @property
    def next(self) -> str:
        """The commit that git asks for next, while some are open."""
        return self._scratch.text("rev-parse", "--verify", "BISECT_HEAD")

    @property
    def log(self) -> str:
        """What ``git bisect replay`` takes."""
        return self._scratch.text("bisect", "log")


def described(scratch: Scratch, commits: Sequence[str]) -> list[Commit]:
    """Commits as people know them, in the same order.  Raises ``GitError``."""
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
    """Without what a terminal would obey, or what is no character."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def roots_of(scratch: Scratch, good: str, bad: str) -> list[str]:
    """Where the histories of two commits part: ``good`` itself where it is an ancestor.

    Empty where they have nothing in common (git-merge-base(1)).  Raises ``GitError``.
    """
    try:
        return scratch.text("merge-base", "--all", good, bad).splitlines()
    except GitError as error:
        if error.status == 1:
            return []
        raise
