"""What was changed of an engine's source: patches, pull requests, steps at every start."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from builder.plan.inputs import Plan, PlannedPatch
from builder.recipes.schema import AddPatch, FilePatch, PickPatch, PullPatch, ScriptPatch
from builder.sbom.addresses import at_commit, page, public

UPSTREAM = re.compile(r"([A-Za-z0-9-]+/[A-Za-z0-9._-]+)#([0-9]+)")
"""GitHub's own way to name an issue or a pull request."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the source, in the order in which they are made.

    ``before`` and ``after`` are commits of the repository ``git``, which has no user in it; a
    program, or added files, are of the commit ``after`` alone.  ``page`` is where people read
    it, ``diff`` where its text is, both empty where nobody publishes them; ``content`` is the
    text itself, of a file of ours.  A change that is not ``applied`` was looked for, and what it
    changes was not there.
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
        """``git+URL@COMMIT`` of what was applied; empty where it has no public URL."""
        return at_commit(self.git, self.after) if self.git else ""

    @property
    def issue(self) -> str:
        """Where it is discussed, as a URL: what the recipe says, else its own page."""
        found = UPSTREAM.fullmatch(self.upstream)
        return f"https://github.com/{found[1]}/issues/{found[2]}" if found else self.page

    def told(self) -> str:
        """One line for people: what, from where, why."""
        commits = "..".join(commit for commit in (self.before, self.after) if commit)
        path = self.path if self.kind == "add" else ""  # the others have it in their name
        place = " ".join(part for part in (self.git, path, commits) if part)
        until = f" (until {self.drop_when})" if self.drop_when else ""
        return f"{self.name}{f' of {place}' if place else ''}: {self.why}{until}"


def changes_of(plan: Plan) -> tuple[Change, ...]:
    """Every patch of a plan in order, then what is patched at every start."""
    starts = (
        Change("start", f"at start: {' '.join(step.run)}", step.why, step.drop_when or "")
        for step in plan.recipe.start
    )
    return (*(_change(planned) for planned in plan.patches), *starts)


def _change(planned: PlannedPatch) -> Change:
    patch, url = planned.patch, planned.url
    made = Change(
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
            return replace(made, path=file, content=planned.content)
        case PullPatch(pull=number, base=before, head=after):
            read = page(url, f"pull/{number}")
            made = replace(made, kind="pull", before=before, after=after, page=read)
            return replace(made, diff=_compared(url, before, after, ".diff"))
        case PickPatch(pick=pick):
            read = _compared(url, pick.after, pick.to)
            made = replace(made, kind="pick", before=pick.after, after=pick.to, page=read)
            if pick.without:
                return made  # no page has the diff of some commits of a range
            return replace(made, diff=_compared(url, pick.after, pick.to, ".diff"))
        case ScriptPatch(script=script):
            read = page(url, f"blob/{script.commit}/{script.path}")
            return replace(made, kind="script", after=script.commit, path=script.path, page=read)
        case AddPatch(add=add):
            read = page(url, f"tree/{add.commit}/{add.path}")
            return replace(made, kind="add", after=add.commit, path=add.path, page=read)


def _compared(url: str, before: str, after: str, form: str = "") -> str:
    """Where GitHub shows, or with ``.diff`` gives, what lies between two commits.

    https://docs.github.com/en/rest/commits/commits#compare-two-commits, as its pages have it: from
    where the two parted, which is the first one, an ancestor of the second.
    """
    return page(url, f"compare/{before}...{after}{form}")
