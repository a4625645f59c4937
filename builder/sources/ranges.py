"""Diffs of pull requests and of ranges of commits, computed from their commits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builder.core.errors import FetchError, PatchError
from builder.plan.inputs import PlannedPatch
from builder.recipes.patches import Pick, PullPatch
from builder.sources.errors import UpstreamLacksError
from builder.sources.repositories import Repositories
from builder.sources.repository import EMPTY_TREE, GITLINK


@dataclass(frozen=True, slots=True)
class Piece:
    """One diff of a patch: a range of commits has several, any other patch has one.

    The diff leads from the commit ``base`` to ``head`` in the repository at ``url``; only pull
    requests and commits have them.
    """

    name: str
    text: bytes
    url: str = ""
    base: str = ""
    head: str = ""
    printed: tuple[str, ...] = ()
    """The last lines that a script printed."""


def _require_ancestor(
    repositories: Repositories, name: str, url: str, base: str, head: str
) -> None:
    repositories.walk(url, head)
    scratch = repositories.scratch
    if not scratch.missing([base]) and scratch.is_ancestor(base, head):
        return
    raise PatchError(
        f"{name} is not the diff of a branch",
        f"{base} is not an ancestor of {head} in {url}",
        "`builder patch add` finds the commit at which the branch forked",
    )


def between(repositories: Repositories, planned: PlannedPatch, base: str, head: str) -> bytes:
    """The diff of a pull request, computed from its two commits."""
    _require_ancestor(repositories, planned.name, planned.url, base, head)
    return diff_of(repositories, planned.url, base, head, planned.name)


def diff_of(repositories: Repositories, url: str, old: str, new: str, name: str) -> bytes:
    """The diff between two walked commits.

    Raises ``PatchError`` if it is empty.
    """
    pairs = repositories.scratch.changes(old, new)
    names = [item.object for pair in pairs for item in pair if item.mode != GITLINK]
    repositories.contents(url, names)
    text = repositories.scratch.diff(old, new)
    if not text:
        raise PatchError(f"{name} changes nothing", f"{old} and {new} have the same tree")
    return text


def picked(repositories: Repositories, planned: PlannedPatch, pick: Pick) -> Iterator[Piece]:
    """A diff for each commit of a range, oldest first; a merge has none."""
    span = f"{pick.after}..{pick.to}"
    _require_ancestor(repositories, planned.name, planned.url, pick.after, pick.to)
    listing = repositories.scratch.text("log", "--reverse", "--format=%H %P%x09%s", span)
    if not listing:
        raise PatchError(
            f"{planned.name} changes nothing", f"there is no commit after {pick.after}"
        )
    lines = listing.splitlines()
    strange = sorted(set(pick.without) - {line[:40] for line in lines})
    if strange:
        raise PatchError(
            f"{planned.name} leaves out commits that it does not contain",
            f"not among the commits of {span}: {', '.join(strange)}",
            "correct `without`",
        )
    if len(pick.without) == len(lines):
        raise PatchError(
            f"nothing is left of {planned.name}",
            "all of its commits are left out",
            "drop the patch, or narrow `without`",
        )
    for line in lines:
        names, _, subject = line.partition("\t")
        commit, *parents = names.split(" ")
        if commit in pick.without:
            continue
        if len(parents) > 1:
            raise PatchError(
                f"{planned.name} contains the merge {commit[:12]} ({subject})",
                "a merge has no diff of its own",
                "pick the ranges before and after it",
            )
        name = f"commit {commit[:12]} ({subject})"
        base = parents[0] if parents else EMPTY_TREE
        text = diff_of(repositories, planned.url, base, commit, name)
        yield Piece(name, text, planned.url, base, commit)


def lost(
    repositories: Repositories, planned: PlannedPatch, commit: str, error: UpstreamLacksError
) -> UpstreamLacksError:
    """The error of a patch whose ``commit`` is gone: the pull request's present head, if any."""
    keep = f"push {commit} from a clone that has it to a repository of yours: git = URL"
    what, patch = f"{planned.name}: {planned.url} no longer has {commit[:12]}", planned.patch
    if not isinstance(patch, PullPatch):
        return UpstreamLacksError(what, error.why, keep)
    try:
        head = repositories.mirror(planned.url).advertised().pull(patch.pull)
    except FetchError:
        head = None  # the repository is gone, too
    if head is None:
        return UpstreamLacksError(f"{what}, and no pull request {patch.pull}", error.why, keep)
    where = f" --repository {patch.git}" if patch.git else ""
    return UpstreamLacksError(
        f"{what}; the head of pull request {patch.pull} is {head[:12]} now",
        error.why,
        f"`builder patch add {planned.recipe} --pull {patch.pull}{where}` pins that; or {keep}",
    )
