"""The state of one patch on one tree, explained by the history of that tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from builder.errors import FetchError, GoneError, PatchError, UntriedError
from builder.patches.apply import Attempt, attempt
from builder.patches.blocks import blocks_of
from builder.patches.context import AbsentError, HalfDoneError, PatchContext
from builder.patches.diff import FileDiff
from builder.patches.history import History
from builder.patches.ranges import Piece, diff_of
from builder.patches.series import files_of, overlapping, pieces, require_absence
from builder.patches.state import PatchState
from builder.plan.inputs import PlannedPatch
from builder.recipes.edit import NamedCommit
from builder.tools.git.errors import GitError


@dataclass(frozen=True, slots=True)
class DiffState:
    """One diff of a patch on one tree; for a range of commits, the diff of ``commit``.

    ``commits`` are the commits of upstream that explain the state.
    """

    name: str
    commit: str
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
            self.state == PatchState.ABSENT
            if self.expected == "absent"
            else self.state == PatchState.APPLIES
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
        note = ""
        try:
            if self.planned.patch.expect == "absent":
                note = self._unexpected(start)
                if not note:
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
        except HalfDoneError as error:
            return start, self.finding(PatchState.CONFLICTS, [error.what, *error.why.splitlines()])
        except GoneError as error:
            details = [error.what, *error.why.splitlines(), *filter(None, [error.hint])]
            return start, self.finding(PatchState.BROKEN, details)
        except PatchError as error:
            return start, self.finding(PatchState.BROKEN, [error.what, *error.why.splitlines()])
        finding = self._blaming(start, diffs, self._together(parts))
        if note:
            return start, replace(finding, details=(note, *finding.details))
        fits = finding.state == PatchState.APPLIES
        if fits and tree == start:
            return start, self.finding(PatchState.BROKEN, ["it changes nothing"])
        return tree if fits else start, finding

    def _blaming(
        self, start: str, diffs: list[list[FileDiff]], finding: PatchFinding
    ) -> PatchFinding:
        """The finding, or a conflict with an earlier patch of the recipe where that is the reason.

        Then upstream is not: the patch applies without the earlier one.
        """
        if finding.state == PatchState.APPLIES:
            return finding
        by = overlapping(self.context.scratch, self.earlier, start, diffs)
        if not by:
            return finding
        again = finding.state == PatchState.UPSTREAM
        did = "makes this change already" if again else "changed these lines"
        details = [f"your earlier patch {by} {did}", *finding.details]
        return self.finding(PatchState.CONFLICTS, details)

    def _unexpected(self, tree: str) -> str:
        """The files that exist although the recipe expects them to be absent; empty if none."""
        try:
            require_absence(self.context, self.planned, tree)
        except PatchError as error:
            return f"{error.what}: {error.why}" if error.why else error.what
        return ""

    def _series(
        self, start: str, found: list[Piece], diffs: list[list[FileDiff]]
    ) -> tuple[str, list[DiffState]]:
        """Try the diffs of a patch, in order, on a tree.

        If they do not all apply, upstream may have the first diffs under one commit: then it never
        had the lines that one diff adds and the next diff removes.
        """
        tree, parts = self._each(start, found, diffs)
        known = sum(part.state == PatchState.UPSTREAM for part in parts)
        if len(parts) == known or all(part.state == PatchState.APPLIES for part in parts):
            return tree, parts
        for count in range(len(found), max(known, 1), -1):
            if all(block.blank for block in blocks_of(diffs[count - 1])):
                continue  # blocks are compared without white space
            by = self._as_one(start, found[:count])
            if by is not None:
                first = [
                    _upstream(DiffState(p.name, p.head, PatchState.UPSTREAM), by)
                    for p in found[:count]
                ]
                tree, rest = self._each(start, found[count:], diffs[count:])
                return tree, [*first, *rest]
        return tree, parts

    def _each(
        self, tree: str, found: list[Piece], diffs: list[list[FileDiff]]
    ) -> tuple[str, list[DiffState]]:
        parts = []
        for piece, files in zip(found, diffs, strict=True):
            tree, part = self._piece(piece, files, tree)
            parts.append(part)
        return tree, parts

    def _as_one(self, tree: str, found: list[Piece]) -> tuple[str, ...] | None:
        """The commits by which upstream contains successive commits together; None: it does not."""
        first, last = found[0], found[-1]
        text = diff_of(self.context.repositories, first.url, first.base, last.head, first.name)
        piece = replace(last, text=text, base=first.base)
        files = files_of(self.context.scratch, self.planned, piece, lambda _: None)
        _, part = self._piece(piece, files, tree)
        return part.commits if part.state == PatchState.UPSTREAM else None

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

    def _together(self, parts: list[DiffState]) -> PatchFinding:
        """The finding for all parts: the worst state; a range that is only in part upstream has no
        other one."""
        if len(parts) == 1:
            (part,) = parts
            return self.finding(part.state, part.details, part.commits)
        state = max((part.state for part in parts), key=list(PatchState).index)
        if state == PatchState.UPSTREAM and any(part.state == PatchState.APPLIES for part in parts):
            state = PatchState.CONFLICTS
        if state == PatchState.APPLIES:
            return self.finding(state, [line for part in parts for line in part.details])
        details = []
        for part in parts:
            there = part.state == PatchState.UPSTREAM
            by = [f"introduced by {name}" for name in part.commits if there]
            details.append("; ".join([f"{part.name}: {part.state}", *by]))
            details += part.details
        named = dict.fromkeys(n for part in parts if part.state == state for n in part.commits)
        return self.finding(state, details, named)

    def _piece(self, piece: Piece, files: list[FileDiff], tree: str) -> tuple[str, DiffState]:
        fate = attempt(self.context.scratch, tree, files, self.like)
        part = DiffState(piece.name, piece.head, fate.state, tuple(_details(piece, files, fate)))
        try:
            part = self._explained(part, piece, files, fate, tree)
        except (FetchError, GitError) as error:
            note = error.what if isinstance(error, FetchError) else error.why
            self.notes.append(f"{piece.name} is compared by its lines only: {note}")
        return fate.tree if part.state == PatchState.APPLIES else tree, part

    def _explained(
        self, part: DiffState, piece: Piece, files: list[FileDiff], fate: Attempt, tree: str
    ) -> DiffState:
        """Add the history's explanation: it has the change, or commits that changed the lines."""
        history = self.history
        if history is None:
            return part
        part, contained = self._merged(part, piece, files, history, tree)
        if contained or part.state == PatchState.APPLIES:
            return part
        if part.state == PatchState.UPSTREAM:
            return replace(part, commits=tuple(history.introducing_commits(piece, files)))
        if part.commits:
            return part
        return replace(part, commits=tuple(history.changing_commits(fate.conflicts, tree, piece)))

    def _merged(
        self, part: DiffState, piece: Piece, files: list[FileDiff], history: History, tree: str
    ) -> tuple[DiffState, bool]:
        """Whether the history has the change and the files still contain it; else why not."""
        ways = [files]
        if part.state == PatchState.APPLIES:
            # What applies where it belongs is not there, unless its own commits are.
            by = history.contains(piece)
        else:
            today, renames = history.renamed(files, piece)
            ways += [today] if renames else []
            part = _elsewhere(part, renames)
            found = (history.introduced_by(piece, way) for way in ways)
            by = next(filter(None, found), None)
        if by is None:
            return part, False
        if part.state == PatchState.UPSTREAM:
            return _upstream(part, (history.name(by),)), True
        why = history.why_missing(by, piece, ways, tree, fits=part.state == PatchState.APPLIES)
        if why is None:
            return _upstream(part, (history.name(by),)), True
        return replace(part, details=(*part.details, why)), False


def _details(piece: Piece, files: list[FileDiff], fate: Attempt) -> list[str]:
    if fate.state == PatchState.APPLIES:
        moved = [f"{path}, hunk {hunk}: {by:+} lines" for path, hunk, by in fate.offsets]
        return (
            moved
            + [*fate.notes]
            + ([f"it printed: {' | '.join(piece.printed)}"] if piece.printed else [])
        )
    count, hunks = len(fate.conflicts), sum(len(file.hunks) for file in files)
    part = fate.state == PatchState.CONFLICTS and count < hunks
    share = [f"{count} of {hunks} hunks do not apply"] if part else []
    return share + [str(each) for each in fate.conflicts]


def _elsewhere(part: DiffState, renames: dict[str, list[str]]) -> DiffState:
    """The state of a part whose files were renamed: it is not absent."""
    if not renames:
        return part
    notes = [f"its lines moved to {path}" for path in renames]
    names = dict.fromkeys(name for by in renames.values() for name in by)
    state = PatchState.CONFLICTS if part.state == PatchState.ABSENT else part.state
    return replace(part, state=state, details=(*part.details, *notes), commits=tuple(names))


def _upstream(part: DiffState, by: tuple[str, ...]) -> DiffState:
    return replace(part, state=PatchState.UPSTREAM, details=(), commits=by)
