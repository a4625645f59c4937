"""The changes of an engine's source: patches, pull requests, steps at every start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from builder.plan.inputs import PlannedPatch
from builder.plan.plan import Plan
from builder.recipes.schema import AddPatch, FilePatch, PickPatch, PullPatch, ScriptPatch
from builder.sbom.addresses import at_commit, public
from builder.tools.web.address import github_page


@dataclass(frozen=True, slots=True)
class SourceChange:
    """One change of the source.

    ``before`` and ``after`` are commits of the repository ``git``, a URL without a user; a script
    and added files have only ``after``.  ``page`` is the URL of the change for people, ``diff`` the
    URL of its text, both empty where there is none; ``content`` is the text of a patch file of this
    repository.  The recipe expects a change that is not ``applied`` to be absent.
    """

    kind: Literal["file", "pull", "pick", "script", "add", "start"]
    name: str
    why: str
    drop_when: str = ""
    upstream: str = ""
    git: str = ""
    before: str = ""
    after: str = ""
    page: str = ""
    diff: str = ""
    path: str = ""
    content: bytes = b""
    applied: bool = True

    @property
    def location(self) -> str:
        """``git+URL@COMMIT`` of the change; empty where it has no public URL."""
        return at_commit(self.git, self.after) if self.git else ""

    def description(self) -> str:
        """One line for people: name, source and reason."""
        commits = "..".join(commit for commit in (self.before, self.after) if commit)
        path = self.path if self.kind == "add" else ""  # part of the name of the others
        origin = " ".join(part for part in (self.git, path, commits) if part)
        until = f" (until {self.drop_when})" if self.drop_when else ""
        return f"{self.name}{f' of {origin}' if origin else ''}: {self.why}{until}"


def changes_of(plan: Plan) -> tuple[SourceChange, ...]:
    """Every patch of a plan in order, then the steps at every start."""
    starts = (
        SourceChange("start", f"at start: {' '.join(step.run)}", step.why, step.drop_when or "")
        for step in plan.recipe.start
    )
    return (*(_change(planned) for planned in plan.patches), *starts)


def _change(planned: PlannedPatch) -> SourceChange:
    patch, url = planned.patch, planned.url
    change = SourceChange(
        "file",
        patch.name,
        patch.why,
        patch.drop_when or "",
        patch.upstream or "",
        public(url),
        applied=patch.expect == "applies",
    )
    match patch:
        case FilePatch(file=file):
            return replace(change, path=file, content=planned.content)
        case PullPatch(pull=number, base=before, head=after):
            page_url = github_page(url, f"pull/{number}")
            change = replace(change, kind="pull", before=before, after=after, page=page_url)
            return replace(change, diff=_compared(url, before, after, ".diff"))
        case PickPatch(pick=pick):
            page_url = _compared(url, pick.after, pick.to)
            change = replace(change, kind="pick", before=pick.after, after=pick.to, page=page_url)
            if pick.without:
                return change  # GitHub has no diff that leaves out commits of a range
            return replace(change, diff=_compared(url, pick.after, pick.to, ".diff"))
        case ScriptPatch(script=script):
            page_url = github_page(url, f"blob/{script.commit}/{script.path}")
            return replace(
                change, kind="script", after=script.commit, path=script.path, page=page_url
            )
        case AddPatch(add=add):
            page_url = github_page(url, f"tree/{add.commit}/{add.path}")
            return replace(change, kind="add", after=add.commit, path=add.path, page=page_url)


def _compared(url: str, before: str, after: str, form: str = "") -> str:
    """The page of GitHub that compares two commits, or with ``.diff`` its text.

    It compares from the merge base of the two, which is ``before``, an ancestor of ``after``:
    https://docs.github.com/en/rest/commits/commits#compare-two-commits.
    """
    return github_page(url, f"compare/{before}...{after}{form}")
