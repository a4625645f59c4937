"""One diff applied to one tree: whether it fits, how, or exactly why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.patches import diff
from builder.patches.conflicts import Conflict, conflicts_of
from builder.patches.diff import FileDiff
from builder.patches.doubts import doubles, doubtful_offsets
from builder.patches.state import PatchState
from builder.tools.git import links
from builder.tools.git.repository import SYMLINK
from builder.tools.git.scratch import Application, NotApplicableError, Scratch


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result for a diff and a tree; ``tree`` is the new one if the diff applies."""

    state: PatchState
    tree: str
    offsets: tuple[tuple[str, int, int], ...] = ()
    """Path, hunk and lines that it moved by."""
    conflicts: tuple[Conflict, ...] = ()


def attempt(scratch: Scratch, tree: str, files: Sequence[FileDiff], origin: str = "") -> Attempt:
    """Apply a diff to a tree, exactly: every line of context must match.

    A hunk may have moved, if its lines occur only once.  ``origin`` is a tree that the diff fits,
    if one is known: its lines are followed from there.
    """
    try:
        done = scratch.apply(tree, diff.joined(files))
    except NotApplicableError as error:
        return _misfit(scratch, tree, files, str(error), origin)
    leaving = _leaving(scratch, tree, files, done)
    if leaving:
        return Attempt(PatchState.CONFLICTS, tree, conflicts=tuple(leaving))
    doubts = doubtful_offsets(scratch, tree, files, done, origin)
    doubts = doubts or doubles(scratch, tree, files, done, origin)
    if doubts:
        return Attempt(PatchState.DOUBTFUL, tree, conflicts=tuple(doubts))
    return Attempt(PatchState.APPLIES, done.tree, done.offsets)


def _misfit(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], reason: str, origin: str
) -> Attempt:
    """The result for a diff that does not fit: it is applied already, or it conflicts."""
    try:
        scratch.apply(tree, diff.joined(files), back=True)
    except NotApplicableError:
        pass
    else:
        return Attempt(PatchState.UPSTREAM, tree)
    conflicts = [found for file in files for found in conflicts_of(scratch, tree, file, origin)]
    if not conflicts:
        conflicts = [Conflict(files[0].path, 0, _reasons(reason))]
    absent = is_absent(scratch, tree, targets_of(files))
    return Attempt(
        PatchState.ABSENT if absent else PatchState.CONFLICTS, tree, conflicts=tuple(conflicts)
    )


def targets_of(files: Sequence[FileDiff]) -> list[str]:
    """The files that a diff expects to exist.

    diff(1) names an old file for a new one too; its only hunk has no old lines.
    """
    made = [file for file in files if file.hunks and not any(h.before for h in file.hunks)]
    return [file.old for file in files if file.old is not None and file not in made]


def is_absent(scratch: Scratch, tree: str, paths: Sequence[str]) -> bool:
    """Whether a tree has none of these files or directories."""
    if not paths or any(scratch.entry(tree, path) for path in paths):
        return False
    return not any(True for _ in scratch.items(tree, *paths))


def _reasons(reason: str) -> str:
    """The reasons in the messages of git, without the lines that it looked for."""
    prefix = "error: "
    lines = [line.removeprefix(prefix) for line in reason.splitlines() if line.startswith(prefix)]
    return "; ".join(line for line in lines if not line.startswith("while searching")) or reason


def _leaving(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], done: Application
) -> list[Conflict]:
    """Symbolic links that the applied diff makes lead out of the tree."""
    paths = {path for file in files for path in file.paths}
    entries = (scratch.entry(each, path) for each in (tree, done.tree) for path in paths)
    if not any(entry is not None and entry.mode == SYMLINK for entry in entries):
        return []
    before = links.leaving(scratch.symlinks(tree))
    return [
        Conflict(path, 0, f"would be a link to {target}, outside the tree")
        for path, target in links.leaving(scratch.symlinks(done.tree)).items()
        if before.get(path) != target
    ]
