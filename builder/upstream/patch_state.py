"""The state of one patch on one tree, explained by the history of that tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from builder.core.errors import FetchError, GoneError, PatchError, UntriedError
from builder.plan.inputs import PlannedPatch
from builder.recipes.edit import NamedCommit
from builder.sources.apply import Attempt, attempt, targets_of
from builder.sources.diff import FileDiff
from builder.sources.errors import GitError
from builder.sources.history import History
from builder.sources.patch_state import PatchState
from builder.sources.patches import files_of, overlapping, pieces, require_absence
from builder.sources.patches_context import AbsentError, HalfDoneError, PatchContext
from builder.sources.ranges import Piece, diff_of

APPLIES, UPSTREAM, CONFLICTS = PatchState.APPLIES, PatchState.UPSTREAM, PatchState.CONFLICTS


class Part(NamedTuple):
    """One diff of a patch on one tree, and the commits of upstream that explain its state."""

    name: str
    state: PatchState
    details: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PatchFinding:
    """The state of one patch on one tree.

    ``commits`` are the commits of upstream that explain it.
    """

    recipe: str
    patch: str
    target: str
    commit: str
    state: PatchState
    details: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    expected: str = "applies"

    @property
    def good(self) -> bool:
        """Whether the patch applies, or is absent where that is expected."""
        return (
            self.state == PatchState.ABSENT if self.expected == "absent" else self.state == APPLIES
        )


@dataclass(frozen=True, slots=True)
class PatchCheck:
    """Tries one patch of a recipe on one target; lines for the user go to ``notes``.

    ``history`` is the target's, where there is one.  For targets other than the pin, ``like``
    is the tree of the pin that the patch was tried on.  ``earlier`` are the patches before it, each
    with the tree that it was tried on.
    """

    recipe: str
    planned: PlannedPatch
    target: NamedCommit
    context: PatchContext
    notes: list[str]
    history: History | None
    like: str = ""
    earlier: tuple[tuple[str, str], ...] = ()

    def run(self, start: str) -> tuple[str, PatchFinding]:
        """Try the patch on a tree: the new tree, or the same one where it does not apply."""
        note: tuple[str, ...] = ()
        try:
            if self.planned.patch.expect == "absent":
                try:
                    require_absence(self.context, self.planned, start)
                except PatchError as error:
                    note = (f"{error.what}: {error.why}" if error.why else error.what,)
                else:
                    return start, self.finding(PatchState.ABSENT)
            found = list(pieces(self.context, self.planned, start))
            diffs = [
                files_of(self.context.scratch, self.planned, piece, self.notes.append)
                for piece in found
            ]
            tree, parts = self._series(start, found, diffs)
        except UntriedError as error:
            return start, self.finding(PatchState.UNTRIED, [error.what])
        except AbsentError as error:
            return start, self.finding(PatchState.ABSENT, [error.why])
        except (PatchError, GoneError) as error:
            state = CONFLICTS if isinstance(error, HalfDoneError) else PatchState.BROKEN
            hint = [error.hint] if isinstance(error, GoneError) and error.hint else []
            return start, self.finding(state, [error.what, *error.why.splitlines(), *hint])
        finding = self._together(parts)
        if finding.state == APPLIES and not note:
            if tree == start:
                return start, self.finding(PatchState.BROKEN, ["it changes nothing"])
            return tree, finding
        scratch, tried = self.context.scratch, finding.state != APPLIES
        by = overlapping(scratch, self.earlier, start, diffs) if tried else ""
        if by:  # then upstream is not the reason
            did = (
                "makes this change already" if finding.state == UPSTREAM else "changed these lines"
            )
            details = [f"your earlier patch {by} {did}", *finding.details]
            finding = self.finding(CONFLICTS, details)
        return start, replace(finding, details=(*note, *finding.details))

    def _series(
        self, start: str, found: list[Piece], diffs: list[list[FileDiff]]
    ) -> tuple[str, list[Part]]:
        """Try the diffs of a patch, in order, on a tree.

        If they do not all apply, upstream may have all of them under one commit.
        """
        tree, parts = start, list[Part]()
        for piece, files in zip(found, diffs, strict=True):
            tree, part = self._piece(piece, files, tree)
            parts.append(part)
        states = {part.state for part in parts}
        if len(parts) > 1 and self.history and states not in ({APPLIES}, {UPSTREAM}):
            first, last = found[0], found[-1]
            text = diff_of(self.context.repositories, first.url, first.base, last.head, first.name)
            piece = replace(last, text=text, base=first.base)
            files = files_of(self.context.scratch, self.planned, piece, lambda _: None)
            by = self.history.introduced(piece, files)
            if by.lasts:
                named = (self.history.name(by.by),)
                return start, [Part(part.name, UPSTREAM, (), named) for part in parts]
        return tree, parts

    def finding(
        self,
        state: PatchState,
        details: Iterable[str] = (),
        commits: Iterable[str] = (),
    ) -> PatchFinding:
        """The finding for the patch on the target."""
        return PatchFinding(
            self.recipe,
            self.planned.name,
            self.target.name,
            self.target.commit,
            state,
            tuple(details),
            tuple(commits),
            self.planned.patch.expect,
        )

    def _together(self, parts: list[Part]) -> PatchFinding:
        """The finding for all parts: the worst state.

        A range of which upstream has only a part conflicts.
        """
        if len(parts) == 1:
            return self.finding(*parts[0][1:])
        states = {part.state for part in parts}
        state = max(states, key=list(PatchState).index)
        if states == {UPSTREAM, APPLIES}:
            state = CONFLICTS
        if state == APPLIES:
            return self.finding(state, [line for part in parts for line in part.details])
        details = []
        for part in parts:
            by = [f"introduced by {name}" for name in part.commits if part.state == UPSTREAM]
            details += ["; ".join([f"{part.name}: {part.state}", *by]), *part.details]
        named = dict.fromkeys(n for part in parts if part.state == state for n in part.commits)
        return self.finding(state, details, named)

    def _piece(self, piece: Piece, files: list[FileDiff], tree: str) -> tuple[str, Part]:
        fate = attempt(self.context.scratch, tree, files, self.like)
        part = Part(piece.name, fate.state, tuple(_details(piece, files, fate)))
        try:
            if self.history is not None:
                part = _explained(self.history, part, piece, files, fate)
        except (FetchError, GitError) as error:
            note = error.what if isinstance(error, FetchError) else error.why
            self.notes.append(f"{piece.name} is compared by its lines only: {note}")
        return fate.tree if part.state == APPLIES else tree, part


def _details(piece: Piece, files: list[FileDiff], fate: Attempt) -> list[str]:
    if fate.state == APPLIES:
        moved = [f"{path}, hunk {hunk}: {by:+} lines" for path, hunk, by in fate.offsets]
        printed = [f"it printed: {' | '.join(piece.printed)}"] if piece.printed else []
        return [*moved, *fate.notes, *printed]
    count, hunks = len(fate.conflicts), sum(len(file.hunks) for file in files)
    part = fate.state == CONFLICTS and count < hunks
    share = [f"{count} of {hunks} hunks do not apply"] if part else []
    return share + [str(each) for each in fate.conflicts]


def _explained(
    history: History, part: Part, piece: Piece, files: list[FileDiff], fate: Attempt
) -> Part:
    """Add what the history shows: it has the change, or commits that changed the lines."""
    found = history.introduced(piece, files, by_ids=part.state != APPLIES)
    by = (history.name(found.by),) if found.by else ()
    if part.state == UPSTREAM:
        return part._replace(commits=by or tuple(history.nearest(piece, files)))
    if found.lasts and part.state != APPLIES:
        return Part(part.name, UPSTREAM, (), by)
    if found.by:
        # What applies is not there.  But git may have found a copy of the lines, elsewhere.
        copied = found.lasts or (fate.offsets and not found.reverted_by)
        state = PatchState.DOUBTFUL if copied else part.state
        part = part._replace(state=state, details=(*part.details, history.described(found)))
    if part.state == APPLIES:
        return part
    moved = [history.moved(path, piece) for path in targets_of(files)]
    notes = [f"its lines moved to {path}" for path, _ in moved if path]
    if not notes:
        return part._replace(commits=tuple(history.changing(fate.conflicts, piece)))
    state = CONFLICTS if part.state == PatchState.ABSENT else part.state
    names = dict.fromkeys(name for _, by in moved for name in by)
    return Part(part.name, state, (*part.details, *notes), tuple(names))
