"""Pull requests: freezing one to two commits, and telling what became of it since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from builder.errors import FetchError, PatchError
from builder.patches.diff import NotADiffError, parse
from builder.patches.history import History
from builder.patches.ranges import Piece, diff_of
from builder.plan.inputs import PlannedPatch
from builder.recipes.schema import PullPatch
from builder.tools.git.repositories import Repositories
from builder.tools.web import github
from builder.upstream.compatibility import PatchSet, diagnose

# As GitHub, Gitea and Forgejo publish them, and GitLab.
PULL_REFS = ("refs/pull/{}/head", "refs/merge-requests/{}/head")


@dataclass(frozen=True, slots=True)
class Ends:
    """The two commits of a pull request's diff, and the subject of its last commit."""

    base: str
    head: str
    subject: str


@dataclass(frozen=True, slots=True)
class Drift:
    """What became of a frozen pull request.

    ``head`` is the one of today, empty where the request is gone.  ``merged`` names the commit
    by which upstream has it, as it was frozen or as it is today.  ``told`` is what GitHub's API
    adds, ``changes`` the range-diff from the frozen commits to those of today
    (git-range-diff(1)).
    """

    recipe: str
    pull: int
    url: str
    frozen: str
    head: str
    merged: str
    told: str
    changes: str

    @property
    def state(self) -> str:
        """In one word."""
        if self.merged:
            return "merged"
        if not self.head:
            return "gone"
        return "moved" if self.head != self.frozen else "unmoved"


def head_of(url: str, number: int, repositories: Repositories) -> str | None:
    """Today's head of a pull request, or None where the repository does not have it.

    Raises ``FetchError`` when the repository does not answer.
    """
    refs = repositories.mirror(url).advertised().refs
    for ref in PULL_REFS:
        if ref.format(number) in refs:
            return refs[ref.format(number)]
    return None


def ends_of(url: str, number: int, repositories: Repositories, onto: str | None = None) -> Ends:
    """Where a pull request's branch left its target branch, and where it ends today.

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
    return repositories.repairing(lambda: _ends(head, branch, repositories))


def _ends(head: str, branch: str, repositories: Repositories) -> Ends:
    scratch = repositories.scratch
    before: str | None = branch
    if scratch.is_ancestor(head, branch):
        # Merged: where the branch stood when it did not have the request yet.
        merge = scratch.merge_of(head, branch)
        before = scratch.text("rev-parse", f"{merge}^1") if merge else None
    base = next(iter(scratch.merge_bases(head, before)), None) if before else None
    if base is None or base == head:
        raise PatchError(
            f"the commits of {head} cannot be told from those of its target branch",
            hint="name the target branch with --onto, or write base and head by hand",
        )
    return Ends(base, head, scratch.text("log", "-1", "--format=%s", head))


def merged_by(
    repositories: Repositories, url: str, pull: int, ends: Ends, *, of: str, commit: str
) -> str | None:
    """The commit by which ``commit`` of the repository ``of`` has a pull request; None: not.

    Its commits are in the history, or their changes under other names.  Without a base only its
    head is looked for.  Raises ``FetchError``.
    """
    repositories.walk(url, ends.head)
    history = History(repositories, of, commit)
    name = f"pull {pull}"
    piece = Piece(name, b"", url, ends.base, ends.head, pull)

    def look() -> str | None:
        text = diff_of(repositories, url, ends.base, ends.head, name) if ends.base else b""
        files = parse(text) if text else []
        by = history.brought(piece, files, thorough=False)
        if by is None or (files and history.missing(by, piece, files, commit)):
            return None
        return history.name(by)

    try:
        return repositories.repairing(look)
    except (PatchError, NotADiffError):
        return None  # it changes nothing, or nothing that a patch can


def drift(case: PatchSet, api: str) -> Iterator[Drift]:
    """What became of every frozen pull request of a recipe.

    Raises ``FetchError`` when a repository does not answer.
    """
    for planned in case.patches:
        if isinstance(planned.patch, PullPatch):
            yield _drift(case, planned, planned.patch, api)


def _drift(case: PatchSet, planned: PlannedPatch, patch: PullPatch, api: str) -> Drift:
    repositories, url = case.repositories, planned.url
    head = head_of(url, patch.pull, repositories) or ""
    told = None if repositories.offline else github.pull_request(api, url, patch.pull)
    onto = told.base_ref if told else None
    changes = ""
    ends = Ends(patch.base, patch.head, "")
    known = [ends]
    if head and head != patch.head:
        try:
            known.append(ends_of(url, patch.pull, repositories, onto))
            changes = _range_diff(repositories, url, patch, known[-1])
        except PatchError:  # its target branch has it, without a merge
            known.append(Ends("", head, ""))
    merged = _merged(case, planned) or _merged_onto(repositories, url, patch.pull, known, onto)
    if not merged and told is not None and told.merged_at:
        merged = f"{told.merge_commit[:9]}, as GitHub says"
    words = _words(told)
    return Drift(case.name, patch.pull, url, patch.head, head, merged, words, changes)


def _merged(case: PatchSet, planned: PlannedPatch) -> str:
    """The commit of the upstream that has what the request does, as far as git can tell."""
    alone = replace(case, patches=(planned,), notes=[])
    for finding in diagnose(alone):
        if finding.state == "upstream":
            return finding.commits[0] if finding.commits else f"in {finding.target}"
    return ""


def _merged_onto(
    repositories: Repositories, url: str, pull: int, known: list[Ends], onto: str | None
) -> str:
    """The commit by which the request's own target branch has it; empty: it does not."""
    advertised = repositories.mirror(url).advertised()
    branch = advertised.commit(f"refs/heads/{onto}" if onto else advertised.head)
    if branch is None:
        return ""
    found = (merged_by(repositories, url, pull, ends, of=url, commit=branch) for ends in known)
    return next((by for by in found if by), "")


def _words(told: github.PullRequest | None) -> str:
    if told is None:
        return ""
    if told.merged_at:
        return f"merged {told.merged_at[:10]} as {told.merge_commit[:9]}: {told.title}"
    return f"{told.state}: {told.title}"


def _range_diff(repositories: Repositories, url: str, old: PullPatch, new: Ends) -> str:
    repositories.walk(url, old.head, new.head)

    def compare() -> str:
        scratch = repositories.scratch
        for base, head in ((old.base, old.head), (new.base, new.head)):
            repositories.contents(url, scratch.logged(f"{base}..{head}"))
        return scratch.text(
            "range-diff", "--no-color", f"{old.base}..{old.head}", f"{new.base}..{new.head}"
        )

    return repositories.repairing(compare)
