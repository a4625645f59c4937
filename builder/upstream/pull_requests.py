"""Pull requests: pinning one as two commits, and comparing it with its state of today."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from builder.errors import FetchError, PatchError
from builder.patches.diff import NotADiffError, parse
from builder.patches.history import History
from builder.patches.ranges import Piece, diff_of
from builder.patches.state import PatchState
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
    """The changes of a pull request since it was pinned.

    ``head`` is today's; empty where the request is gone.  ``merged`` names the commit by which
    upstream contains it, as it was pinned or as it is today.  ``github`` is the state that GitHub's
    API gives.  ``changes`` is the range-diff from the pinned commits to today's
    (git-range-diff(1)).
    """

    recipe: str
    pull: int
    url: str
    pinned: str
    head: str
    merged: str
    github: str
    changes: str

    @property
    def state(self) -> str:
        """``merged``, ``gone``, ``moved`` or ``unmoved``."""
        if self.merged:
            return "merged"
        if not self.head:
            return "gone"
        return "moved" if self.head != self.pinned else "unmoved"


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
    """The commit where a pull request's branch left its target branch, and its head of today.

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
        # Merged: the head of the target branch before the merge.
        merge = scratch.merge_of(head, branch)
        before = scratch.text("rev-parse", f"{merge}^1") if merge else None
    base = next(iter(scratch.merge_bases(head, before)), None) if before else None
    if base is None or base == head:
        raise PatchError(
            f"the commits of {head} cannot be distinguished from commits of its target branch",
            hint="name the target branch with --onto, or write base and head by hand",
        )
    return Ends(base, head, scratch.text("log", "-1", "--format=%s", head))


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
    piece = Piece(name, b"", url, ends.base, ends.head, pull)

    def look() -> str | None:
        text = diff_of(repositories, url, ends.base, ends.head, name) if ends.base else b""
        files = parse(text) if text else []
        by = history.introduced_by(piece, files)
        if by is None or (files and history.why_missing(by, piece, [files], commit, fits=False)):
            return None
        return history.name(by)

    try:
        return repositories.repairing(look)
    except (PatchError, NotADiffError):
        return None  # the request changes nothing that a patch can change


def drift(patch_set: PatchSet, api: str) -> Iterator[Drift]:
    """Compare every pinned pull request of a recipe with its state of today.

    Raises ``FetchError`` when a repository does not answer.
    """
    for planned in patch_set.patches:
        if isinstance(planned.patch, PullPatch):
            yield _drift(patch_set, planned, planned.patch, api)


def _drift(patch_set: PatchSet, planned: PlannedPatch, patch: PullPatch, api: str) -> Drift:
    repositories, url = patch_set.repositories, planned.url
    head = head_of(url, patch.pull, repositories) or ""
    found = None if repositories.offline else github.pull_request(api, url, patch.pull)
    onto = found.base_ref if found else None
    changes = ""
    ends = Ends(patch.base, patch.head, "")
    known = [ends]
    if head and head != patch.head:
        try:
            known.append(ends_of(url, patch.pull, repositories, onto))
            changes = _range_diff(repositories, url, patch, known[-1])
        except PatchError:  # its target branch contains it, without a merge commit
            known.append(Ends("", head, ""))
    merged = _merged(patch_set, planned) or _merged_onto(repositories, url, patch.pull, known, onto)
    if not merged and found is not None and found.merged_at:
        merged = f"{found.merge_commit[:9]}, according to GitHub"
    state = _github_state(found)
    return Drift(patch_set.name, patch.pull, url, patch.head, head, merged, state, changes)


def _merged(patch_set: PatchSet, planned: PlannedPatch) -> str:
    """The commit of the recipe's upstream that contains the request; empty: none is found."""
    single = replace(patch_set, patches=(planned,), notes=[])
    for finding in diagnose(single):
        if finding.state == PatchState.UPSTREAM:
            return finding.commits[0] if finding.commits else f"in {finding.target}"
    return ""


def _merged_onto(
    repositories: Repositories, url: str, pull: int, known: list[Ends], onto: str | None
) -> str:
    """The commit by which the request's target branch contains it; empty: it does not."""
    advertised = repositories.mirror(url).advertised()
    branch = advertised.commit(f"refs/heads/{onto}" if onto else advertised.head)
    if branch is None:
        return ""
    found = (merged_by(repositories, url, pull, ends, of=url, commit=branch) for ends in known)
    return next((by for by in found if by), "")


def _github_state(found: github.PullRequest | None) -> str:
    if found is None:
        return ""
    if found.merged_at:
        return f"merged {found.merged_at[:10]} as {found.merge_commit[:9]}: {found.title}"
    return f"{found.state}: {found.title}"


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
