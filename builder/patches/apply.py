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


def attempt(
    scratch: Scratch,
    tree: str,
    files: Sequence[FileDiff],
    *,
    fuzz: int = 0,
    three_way: bool = False,
    origin: str = "",
) -> Attempt:
    """Apply a diff to a tree, exactly: every line of context must match.

    A hunk may have moved, if its lines occur only once.  ``fuzz`` (lines of context that may
    differ) and ``three_way`` (merge) relax that.  ``origin`` is a tree that the diff fits, if one
    is known: its lines are followed from there.
    """
    text = diff.joined(files)
    try:
        done = scratch.apply(tree, text)
    except NotApplicableError as error:
        return _inexact(scratch, tree, files, str(error), fuzz, three_way, origin)
    places = doubtful_offsets(scratch, tree, files, done, origin)
    if places:
        relaxed = _relaxed(scratch, tree, files, 0, origin) if three_way else None
        return relaxed or Attempt(PatchState.DOUBTFUL, tree, conflicts=tuple(places))
    return _applied(scratch, tree, files, done, PatchState.APPLIES, origin)


def _applied(
    scratch: Scratch,
    tree: str,
    files: Sequence[FileDiff],
    done: Application,
    state: PatchState,
    origin: str,
) -> Attempt:
    """The result for a diff that git applied; it may still be refused."""
    leaving = _leaving(scratch, tree, files, done)
    if leaving:
        return Attempt(PatchState.CONFLICTS, tree, conflicts=tuple(leaving))
    twice = doubles(scratch, tree, files, done, origin)
    if twice:
        return Attempt(PatchState.DOUBTFUL, tree, conflicts=tuple(twice))
    return Attempt(state, done.tree, done.offsets)


def _inexact(
    scratch: Scratch,
    tree: str,
    files: Sequence[FileDiff],
    reason: str,
    fuzz: int,
    three_way: bool,
    origin: str,
) -> Attempt:
    """The diff does not fit exactly: it is applied already, fits inexactly, or conflicts."""
    try:
        scratch.apply(tree, diff.joined(files), back=True)
    except NotApplicableError:
        pass
    else:
        return Attempt(PatchState.UPSTREAM, tree)
    relaxed = _relaxed(scratch, tree, files, fuzz, origin) if fuzz else None
    if relaxed is None and three_way:
        relaxed = _relaxed(scratch, tree, files, 0, origin)
    if relaxed is not None:
        return relaxed
    conflicts = [found for file in files for found in conflicts_of(scratch, tree, file, origin)]
    if not conflicts:
        conflicts = [Conflict(files[0].path, 0, _reasons(reason))]
    absent = is_absent(scratch, tree, targets_of(files))
    return Attempt(
        PatchState.ABSENT if absent else PatchState.CONFLICTS, tree, conflicts=tuple(conflicts)
    )


def _relaxed(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], fuzz: int, origin: str
) -> Attempt | None:
    """Apply the diff with ``fuzz``, or without it by a three-way merge; None if it does not fit."""
    try:
        done = scratch.apply(tree, diff.joined(files), fuzz=fuzz, three_way=not fuzz)
    except NotApplicableError:
        return None
    if not fuzz and not done.merged:
        return None  # git lacks the files that the diff was made for, and applied it exactly
    if done.tree == tree:
        return Attempt(PatchState.UPSTREAM, tree)
    return _applied(scratch, tree, files, done, PatchState.INEXACT, origin)


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
