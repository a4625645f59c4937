"""The state of one patch on one tree, explained by the history of that tree."""

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

MOST_LINES = 4  # of a change, shown where it is not found
STATES = {
    "applies": "applies exactly",
    "offset": "applies at other line numbers",
    "fuzz": "applies with less context, as the recipe allows",
    "merged": "applies by a three-way merge, as the recipe allows",
    "upstream": "upstream contains the change",
    "upstream in part": "upstream contains some commits of the range, the others apply",
    "superseded": "the lines that it changes were there, and were removed",
    "not applicable": "the lines that it changes are not there, and are not known to have been",
    "absent": "the files that it changes do not exist",
    "partly": "part of the change is there already, part is not",
    "conflicts": "the lines that it expects have changed",
    "broken": "not a patch, without effect, or its commits are gone",
    "unexpected": "the recipe expects its files to be absent, but they exist",
    "untried": "its script needs Docker with the recipe's base",
}
"""The meaning of each state, from the best to the worst."""


@dataclass(frozen=True, slots=True)
class Part:
    """One diff of a patch on one tree; for a range of commits, that of ``commit``.

    ``commits`` are the commits of upstream that explain the state.
    """

    name: str
    commit: str
    state: str
    details: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one patch on one tree.

    ``commits`` are the commits of upstream that explain it, ``parts`` the commits of a range.
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
class PatchCheck:
    """Tries one patch of a recipe on one target; lines for the user go to ``notes``.

    ``history`` is that of the target, where there is one.  For targets other than the pin, ``like``
    is the tree of the pin that the patch was tried on, and ``older`` says that the pin is older
    than the target.
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
        """Try the patch on a tree: the new tree, or the same one where it does not apply."""
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
        """The finding for a patch whose files the recipe expects to be absent."""
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
        """The finding for the patch on the target."""
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
        """The finding for all parts: the worst state, unless upstream contains only some."""
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
            by = [f"introduced by {name}" for name in part.commits if part.state == "upstream"]
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
            self.notes.append(f"{piece.name} is compared by its lines only: {note}")
        return fate.tree if part.state in FITS else tree, part

    def _explained(
        self, part: Part, piece: Piece, files: list[FileDiff], fate: Attempt, tree: str
    ) -> Part:
        """Add the history's explanation: it has the change, or commits that changed the lines."""
        history = self.history
        if history is None:
            return self._released(part, files) if part.state == "not applicable" else part
        part, contained = self._merged(part, piece, files, history, tree)
        if contained:
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
        """Explain a submodule by the commits that moved it: its own history is not read."""
        history = self.history
        if history is None or part.state in FITS or part.commits:
            return part
        submodules = history.submodules(files)
        if not submodules:
            return part
        moves = history.moved(submodules, piece)
        note = f"the history of the submodule {', '.join(submodules)} is not read"
        by = "these commits moved it" if moves else "no commit moved it since"
        return replace(part, details=(*part.details, f"{note}; {by}"), commits=tuple(moves))

    def _merged(
        self, part: Part, piece: Piece, files: list[FileDiff], history: History, tree: str
    ) -> tuple[Part, bool]:
        """Whether the history has the change and the files still contain it; else why not."""
        if part.state == "upstream":
            by = history.introduced_by(piece, files, thorough=True)
            return (part, False) if by is None else (_upstream(part, history.name(by)), True)
        ways = [files]
        if part.state not in FITS:
            today, renames = history.renamed(files, piece)
            ways += [today] if renames else []
            part = _elsewhere(part, renames)
        thorough = part.state not in FITS
        found = (history.introduced_by(piece, way, thorough=thorough) for way in ways)
        by = next(filter(None, found), None)
        if by is None:
            return part, False
        whys = (history.why_missing(by, piece, way, tree) for way in ways)
        why = next(filter(None, whys), None)
        if why is None:
            return _upstream(part, history.name(by)), True
        return replace(part, details=(*part.details, why)), False

    def _gone(self, part: Part, piece: Piece, files: list[FileDiff], history: History) -> Part:
        """Explain missing lines: they were removed, moved to another file, or never there."""
        found = history.removed_lines(piece, files, self.like)
        if found is None:
            since = history.merge_base(piece)
            at = f", nor in {since[:9]}, the common ancestor with the patch" if since else ""
            return replace(part, details=(*part.details, *self._looked_for(files, at)))
        moved, names = found
        if moved:
            note = f"its lines moved to {moved}"
            return replace(part, state="conflicts", details=(*part.details, note), commits=names)
        return replace(part, state="superseded", commits=names)

    def _released(self, part: Part, files: list[FileDiff]) -> Part:
        """A release has no history: a newer one once had the lines of an older pin."""
        scratch = self.context.scratch
        if (
            self.older
            and self.like
            and all(had_lines(file, scratch.file(self.like, file.old or "")) for file in files)
        ):
            return replace(part, state="superseded")
        return replace(part, details=(*part.details, *self._looked_for(files, "")))

    def _looked_for(self, files: list[FileDiff], where: str) -> list[str]:
        """The lines that the target does not have, a detail for each file."""
        found = []
        for file in files:
            lines = list(dict.fromkeys(changing(file)))
            shown = [line.decode("utf-8", "replace").strip() for line in lines[:MOST_LINES]]
            more = f"; and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
            found.append(f"{file.path}: not there{where}: {'; '.join(shown)}{more}")
        return found


def _elsewhere(part: Part, renames: dict[str, list[str]]) -> Part:
    """The state of a part whose files were renamed: it is not absent."""
    if not renames:
        return part
    notes = [f"its lines moved to {path}" for path in renames]
    names = dict.fromkeys(name for by in renames.values() for name in by)
    state = "conflicts" if part.state == "absent" else part.state
    return replace(part, state=state, details=(*part.details, *notes), commits=tuple(names))


def _upstream(part: Part, by: str) -> Part:
    return replace(part, state="upstream", details=(), commits=(by,))
