"""Pull requests: their two ends, and the commit by which a history contains one."""

from __future__ import annotations

from dataclasses import dataclass

from builder.core.errors import FetchError, PatchError
from builder.sources.diff import NotADiffError, parse
from builder.sources.history import History
from builder.sources.ranges import Piece, diff_of
from builder.sources.repositories import Repositories
from builder.sources.server import PULL_REFS


@dataclass(frozen=True, slots=True)
class Ends:
    """The two commits of a pull request's diff, and the subject of its last commit."""

    base: str
    head: str
    subject: str


def head_of(url: str, number: int, repositories: Repositories) -> str | None:
    """The present head of a pull request, or None where the repository does not have it.

    Raises ``FetchError`` when the repository does not answer.
    """
    return repositories.mirror(url).advertised().pull(number)


def ends_of(url: str, number: int, repositories: Repositories, onto: str | None = None) -> Ends:
    """The commit where a pull request's branch left its target branch, and its present head.

    ``onto`` is the target branch; default: the repository's default branch.  Raises
    ``FetchError`` when there is no such request, or no such branch, ``PatchError`` when the
    two branches have no commit in common.
    """
    head = head_of(url, number, repositories)
    if head is None:
        raise FetchError(
            f"{url} has no pull request {number}",
            f"it offers no {PULL_REFS[0].format(number)}",
            "name the repository that has it with --repository URL",
        )
    advertised = repositories.mirror(url).advertised()
    branch = advertised.commit(f"refs/heads/{onto}" if onto else advertised.head)
    if branch is None:
        missing = f"no branch {onto}" if onto else "no default branch"
        raise FetchError(f"{url} has {missing}", hint="name the target branch with --onto")
    repositories.walk(url, head, branch)
    scratch = repositories.scratch
    before: str | None = branch
    if scratch.is_ancestor(head, branch):
        # Merged: the head of the target branch before the merge.
        merge = scratch.merge_of(head, branch)
        before = scratch.text("rev-parse", f"{merge}^1") if merge else None
    base = next(iter(scratch.merge_bases(head, before)), None) if before else None
    if base is None or base == head:
        raise PatchError(
            f"the commits of {head} cannot be distinguished from commits of its target branch",
            hint="name the target branch with --onto, or write base and head by hand",
        )
    return Ends(base, head, scratch.text("log", "--no-walk", "--format=%s", head))


def merged_by(
    repositories: Repositories, url: str, pull: int, ends: Ends, *, of: str, commit: str
) -> str | None:
    """The commit by which the history of ``commit`` contains a pull request; None: it does not.

    ``of`` is the repository of ``commit``.  The history contains the commits of the request, or the
    same changes in other commits.  Without a base only the head is looked for.  Raises
    ``FetchError``.
    """
    repositories.walk(url, ends.head)
    history = History(repositories, of, commit)
    name = f"pull {pull}"
    piece = Piece(name, b"", url, ends.base, ends.head)

    try:
        text = diff_of(repositories, url, ends.base, ends.head, name) if ends.base else b""
        found = history.introduced(piece, parse(text) if text else [])
    except (PatchError, NotADiffError):
        return None  # the request changes nothing that a patch can change
    return history.name(found.by) if found.arrived else None
