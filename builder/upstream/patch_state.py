"""One patch on one tree: what becomes of it there, and what the history says of that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from builder.errors import FetchError, GoneError, PatchError, UntriedError
from builder.patches.apply import FITS, Attempt, attempt
from builder.patches.commits import had_lines
from builder.patches.conflicts import changing
from builder.patches.context import AbsentError, HalfDoneError, PatchContext
from builder.patches.diff import FileDiff
from builder.patches.history import History
from builder.patches.ranges import Piece
from builder.patches.series import files_of, pieces, require_absence
from builder.plan.inputs import PlannedPatch
from builder.recipes.edit import Target
from builder.tools.git.errors import GitError

MOST_LINES = 4  # of what was looked for, that are shown
STATES = {
    "applies": "every line is where the patch expects it",
    "offset": "every line is there, further up or down",
    "fuzz": "applies with less context, as the recipe allows",
    "merged": "applies by a three-way merge, as the recipe allows",
    "upstream": "the history has it, or what it does is there already",
    "upstream in part": "some commits of the range are upstream, the others apply",
    "superseded": "the lines that it changes were there, and went",
    "not applicable": "the lines that it changes are not there, nor known to have been there",
    "absent": "the files that it changes are not there",
    "partly": "some of what it expects is there, some is not",
    "conflicts": "the lines that it expects have changed",
    "broken": "it is no patch, does nothing, or its commits are gone",
    "unexpected": "what it changes is there, and the recipe says that it is not",
    "untried": "its script needs an engine with the recipe's base",
}
"""What each finding means."""


@dataclass(frozen=True, slots=True)
class Part:
    """One diff of a patch on one tree: one commit of a range, where ``commit`` names it.

    ``commits`` are upstream's that explain the state.
    """

    name: str
    commit: str
    state: str
    details: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One patch on one tree.  ``commits`` are upstream's that explain the state.

    ``parts`` are those of a patch that has several: each commit of a range.
    """

    recipe: str
    patch: str
    target: str
    commit: str
    state: str
    details: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    expected: str = "applies"
    parts: tuple[Part, ...] = ()

    @property
    def there(self) -> list[str]:
        """The commits of a range that are upstream."""
        return [part.commit for part in self.parts if part.state == "upstream"]

    @property
    def good(self) -> bool:
        """Whether the patch applies, or is absent where that is expected."""
        return self.state == "absent" if self.expected == "absent" else self.state in FITS


@dataclass(frozen=True, slots=True)
class GpuTest:
    """One patch of a recipe on one target; what else there is to know goes to ``notes``.

    ``history`` is the target's, where there is one.  ``like`` is the tree of the pin that the
    patch was tried on, and ``older`` says that the pin is the older one; both are for targets
    that are not the pin.
    """

    recipe: str
    planned: PlannedPatch
    target: Target
    context: PatchContext
    notes: list[str]
    history: History | None
    like: str = ""
    older: bool = False

    def run(self, start: str) -> tuple[str, Finding]:
        """Try it on a tree: the new tree, or the same one where it does not apply."""
        try:
            if self.planned.patch.expect == "absent":
                return start, self._absent(start)
            tree, parts = start, []
            for piece in pieces(self.context, self.planned, start):
                tree, part = self._piece(piece, tree)
                parts.append(part)
        except UntriedError as error:
            return start, self.finding("untried", [error.what])
        except AbsentError as error:
            return start, self.finding("absent", [error.why])
        except HalfDoneError as error:
            return start, self.finding("partly", [error.what, *error.why.splitlines()])
        except (PatchError, GoneError) as error:
            return start, self.finding("broken", [error.what, *error.why.splitlines()])
        found = self._together(parts)
        fits = found.state in FITS or found.state == "upstream in part"
        if fits and tree == start:
            return start, self.finding("broken", ["it changes nothing"])
        return tree if fits else start, found

    def _absent(self, tree: str) -> Finding:
        """Whether what the patch changes is as absent as the recipe expects."""
        try:
            require_absence(self.context, self.planned, tree)
        except PatchError as error:
            return self.finding("unexpected", [error.why])
        return self.finding("absent")

    def finding(
        self,
        state: str,
        details: Iterable[str] = (),
        commits: Iterable[str] = (),
        parts: Iterable[Part] = (),
    ) -> Finding:
        """What is found of the patch on the target."""
        return Finding(
            self.recipe,
            self.planned.name,
            self.target.name,
            self.target.commit,
            state,
            tuple(details),
            tuple(commits),
            self.planned.patch.expect,
            tuple(parts),
        )

    def _together(self, parts: list[Part]) -> Finding:
        """What the parts of a patch come to: the worst of them, unless some are upstream."""
        if len(parts) == 1:
            (part,) = parts
            return self.finding(part.state, part.details, part.commits)
        state = max((part.state for part in parts), key=list(STATES).index)
        if state == "upstream" and any(part.state in FITS for part in parts):
            state = "upstream in part"
        if state in FITS:
            return self.finding(state, [line for part in parts for line in part.details], (), parts)
        details = []
        for part in parts:
            by = [f"brought by {name}" for name in part.commits if part.state == "upstream"]
            details.append("; ".join([f"{part.name}: {part.state}", *by]))
            details += part.details
        named = dict.fromkeys(n for part in parts if part.state == state for n in part.commits)
        return self.finding(state, details, named, parts)

    def _piece(self, piece: Piece, tree: str) -> tuple[str, Part]:
        files = files_of(self.planned, piece, self.notes.append)
        fate = attempt(
            self.context.scratch,
            tree,
            files,
            fuzz=self.planned.patch.fuzz,
            three_way=self.planned.patch.three_way,
            origin=self.like,
        )
        moved = [f"{path}, hunk {hunk}: {by:+} lines" for path, hunk, by in fate.offsets]
        moved += [f"it printed: {' | '.join(piece.printed)}"] if piece.printed else []
        details = moved if fate.state in FITS else [str(each) for each in fate.conflicts]
        part = Part(piece.name, piece.head, fate.state, tuple(details))
        try:
            part = self._within(self._explained(part, piece, files, fate, tree), piece, files)
        except (FetchError, GitError) as error:
            note = error.what if isinstance(error, FetchError) else error.why
            self.notes.append(f"{piece.name} is told by its lines only: {note}")
        return fate.tree if part.state in FITS else tree, part

    def _explained(
        self, part: Part, piece: Piece, files: list[FileDiff], fate: Attempt, tree: str
    ) -> Part:
        """What the history adds: that it has the change, or who changed or took the lines."""
        history = self.history
        if history is None:
            return self._released(part, files) if part.state == "not applicable" else part
        part, has_it = self._merged(part, piece, files, history, tree)
        if has_it:
            return part
        if part.state == "upstream":
            return replace(part, commits=tuple(history.introducing_commits(piece, files, tree)))
        if part.state in FITS:
            return part
        if part.state == "not applicable":
            part = self._gone(part, piece, files, history)
        named = part.commits or tuple(history.changing_commits(fate.conflicts, tree, piece))
        return replace(part, commits=named)

    def _within(self, part: Part, piece: Piece, files: list[FileDiff]) -> Part:
        """A submodule's own history is not read: who moved the submodule is what is known."""
        history = self.history
        if history is None or part.state in FITS or part.commits:
            return part
        submodules = history.submodules(files)
        if not submodules:
            return part
        moves = history.moved(submodules, piece)
        note = f"the history of {', '.join(submodules)}, a submodule, is not read"
        by = "the commits are those that moved it" if moves else "nobody moved it since"
        return replace(part, details=(*part.details, f"{note}; {by}"), commits=tuple(moves))

    def _merged(
        self, part: Part, piece: Piece, files: list[FileDiff], history: History, tree: str
    ) -> tuple[Part, bool]:
        """Whether the history has the change and the files still do; if not, why not."""
        if part.state == "upstream":
            by = history.brought(piece, files, thorough=True)
            return (part, False) if by is None else (_upstream(part, history.name(by)), True)
        ways = [files]
        if part.state not in FITS:
            today, renames = history.renamed(files, piece)
            ways += [today] if renames else []
            part = _elsewhere(part, renames)
        thorough = part.state not in FITS
        found = (history.brought(piece, way, thorough=thorough) for way in ways)
        by = next(filter(None, found), None)
        if by is None:
            return part, False
        whys = (history.missing(by, piece, way, tree) for way in ways)
        why = next(filter(None, whys), None)
        if why is None:
            return _upstream(part, history.name(by)), True
        return replace(part, details=(*part.details, why)), False

    def _gone(self, part: Part, piece: Piece, files: list[FileDiff], history: History) -> Part:
        """Lines that are not there: they went, they are elsewhere, or they never were there."""
        found = history.went(piece, files, self.like)
        if found is None:
            since = history.parted(piece)
            at = f", nor in {since[:9]}, where its history parts from the patch's" if since else ""
            return replace(part, details=(*part.details, *self._looked_for(files, at)))
        moved, names = found
        if moved:
            note = f"its lines are in {moved} now"
            return replace(part, state="conflicts", details=(*part.details, note), commits=names)
        return replace(part, state="superseded", commits=names)

    def _released(self, part: Part, files: list[FileDiff]) -> Part:
        """Releases have no history: what an older pin has, a newer release once had."""
        scratch = self.context.scratch
        if (
            self.older
            and self.like
            and all(had_lines(file, scratch.file(self.like, file.old or "")) for file in files)
        ):
            return replace(part, state="superseded")
        return replace(part, details=(*part.details, *self._looked_for(files, "")))

    def _looked_for(self, files: list[FileDiff], where: str) -> list[str]:
        """What is not in the target."""
        found = []
        for file in files:
            lines = list(dict.fromkeys(changing(file)))
            told = "; ".join(line.decode("utf-8", "replace").strip() for line in lines[:MOST_LINES])
            more = f"; and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
            found.append(f"{file.path}: not there{where}: {told}{more}")
        return found


def _elsewhere(part: Part, renames: dict[str, list[str]]) -> Part:
    """What becomes of a part whose files have other names now: it is not absent."""
    if not renames:
        return part
    notes = [f"its lines are in {path} now" for path in renames]
    names = dict.fromkeys(name for by in renames.values() for name in by)
    state = "conflicts" if part.state == "absent" else part.state
    return replace(part, state=state, details=(*part.details, *notes), commits=tuple(names))


def _upstream(part: Part, by: str) -> Part:
    return replace(part, state="upstream", details=(), commits=(by,))
