"""The changes of an engine's source: patches, pull requests, steps at every start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from builder.core.address import github_page
from builder.plan.inputs import PlannedPatch
from builder.plan.plan import Plan
from builder.publish.addresses import at_commit, public


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
    return (*map(_change, plan.patches), *starts)


def _change(planned: PlannedPatch) -> SourceChange:
    patch, origin = planned.patch, planned.patch.origin
    return SourceChange(
        origin.kind,
        origin.name,
        patch.why,
        patch.drop_when or "",
        patch.upstream or "",
        git=public(planned.url),
        before=origin.before,
        after=origin.after,
        page=planned.page,
        diff=github_page(planned.url, origin.diff) if origin.diff else "",
        path=origin.path,
        content=planned.content,
        applied=patch.expect == "applies",
    )
