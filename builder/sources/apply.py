"""One diff applied to one tree: whether it fits, how, or exactly why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from builder.core import links
from builder.sources import diff
from builder.sources.conflicts import Conflict, conflicts_of, file_lines, places
from builder.sources.diff import FileDiff, NoDiffError, NotADiffError
from builder.sources.doubts import doubles, doubtful_offsets
from builder.sources.patch_state import PatchState
from builder.sources.repository import SYMLINK
from builder.sources.scratch import Application, CountedFile, NotApplicableError, Scratch


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result for a diff and a tree; ``tree`` is the new one if the diff applies."""

    state: PatchState
    tree: str
    offsets: tuple[tuple[str, int, int], ...] = ()
    """Path, hunk and lines that it moved by."""
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()
    """Files that become another blob than the diff names, though it was made for this tree's."""


def read(scratch: Scratch, text: bytes) -> list[FileDiff]:
    """The files of a diff or of a mailbox, as git and ``diff.parse`` both read them.

    The diff of each mail is a step of its own.  Raises ``NotADiffError`` where git refuses the
    text or reads it otherwise, and for a mail without a diff that is no cover letter.
    """
    files: list[FileDiff] = []
    parts = diff.mails(text)
    for number, (line, part, mailed) in enumerate(parts, 1):
        try:
            files += _part(scratch, line, part, mailed=mailed, step=len(files))
        except NotADiffError as error:
            if isinstance(error, NoDiffError) and not mailed and len(parts) > 1:
                continue  # a remark above the first mail
            where = f"mail {number}: " if len(parts) > 1 else ""
            raise NotADiffError(f"{where}{error}") from error
    if not files:
        raise NoDiffError("it contains no diff")
    return files


def _part(
    scratch: Scratch, line: int, part: bytes, *, mailed: bool, step: int
) -> Iterator[FileDiff]:
    """The files of one mail, or of a text without mails that starts after ``line``."""
    text = scratch.diff_of_mail(part) if mailed else part
    if part.endswith(text):
        line += part.count(b"\n") - text.count(b"\n")
        text = b"\n" * line + text  # so that errors name the lines of the file
    if mailed and diff.COVER.search(part) and b"\ndiff --git " not in text:
        return
    found = diff.parse(text)
    try:
        read_by_git = scratch.files_of(text)
    except NotApplicableError as error:
        raise NotADiffError(f"git refuses it: {_reasons(str(error))}") from error
    for file, other in zip_longest(found, read_by_git):
        if not file or not other or file.counts != other.counts or not _is_named(file, other.path):
            git, own = (_counted(each) for each in (other, file))
            raise NotADiffError(f"git reads {git}, and its headers say {own}")
        if file.by_git and None not in {file.old, file.new} and file.old != file.new:
            if not diff.RENAMES.search(file.text):
                both = f"{file.old} and {file.new}"
                raise NotADiffError(f"it names {both} as one file: give both headers one name")
        elif not file.by_git:
            names = {"old": file.old and other.path, "new": file.new and other.path}
            file = replace(file, **names)
        yield replace(file, step=step + file.step)


def _is_named(file: FileDiff, path: str) -> bool:
    """Whether a file has the name that git reads; without git's header, perhaps the shorter of two.

    git takes that one for `diff -u x.orig x`, and drops a date after it.
    """
    if file.by_git:
        return path == file.path
    return any(name == path or name.startswith(f"{path} ") for name in file.paths)


def _counted(file: FileDiff | CountedFile | None) -> str:
    if file is None:
        return "nothing more"
    counts = file.counts
    return f"{file.path} ({f'+{counts[0]} -{counts[1]}' if counts else 'binary'})"


def attempt(scratch: Scratch, tree: str, files: Sequence[FileDiff], origin: str = "") -> Attempt:
    """Apply a diff to a tree, exactly: every line of context must match.

    A hunk may have moved, if its lines occur only once.  ``origin`` is a tree that the diff fits,
    if one is known: its lines are followed from there.
    """
    now, offsets, notes = tree, list[tuple[str, int, int]](), list[str]()
    every = diff.steps(files)
    for before, step in zip([[], *every], every, strict=False):
        origin = _advanced(scratch, origin, before) if before else origin
        done = _step(scratch, now, step, origin)
        if done.state == PatchState.CONFLICTS and _is_there(scratch, tree, files):
            return Attempt(PatchState.UPSTREAM, tree)
        if done.state == PatchState.CONFLICTS and is_absent(scratch, tree, targets_of(files)):
            return Attempt(PatchState.ABSENT, tree, conflicts=done.conflicts)
        if done.state != PatchState.APPLIES:
            return replace(done, tree=tree)
        now = done.tree
        offsets += done.offsets
        notes += done.notes
    return Attempt(PatchState.APPLIES, now, tuple(offsets), notes=tuple(notes))


def _step(scratch: Scratch, tree: str, files: Sequence[FileDiff], origin: str) -> Attempt:
    # Read before git does: a damaged mirror is repaired then.
    before = [file_lines(scratch, tree, file.old) or [] for file in files]
    try:
        done = scratch.apply(tree, diff.joined(files))
    except NotApplicableError as error:
        conflicts = [found for file in files for found in conflicts_of(scratch, tree, file, origin)]
        conflicts = conflicts or [Conflict(files[0].path, 0, _reasons(str(error)))]
        return Attempt(PatchState.CONFLICTS, tree, conflicts=tuple(conflicts))
    wrong = _wrong(scratch, tree, files, before, done, origin) or _leaving(
        scratch, tree, files, done
    )
    if wrong:
        return Attempt(PatchState.CONFLICTS, tree, conflicts=tuple(wrong))
    doubts = doubtful_offsets(scratch, tree, files, done, origin)
    doubts = doubts or doubles(scratch, tree, files, done, origin)
    if doubts:
        return Attempt(PatchState.DOUBTFUL, tree, conflicts=tuple(doubts))
    moved = ((files[index].path, hunk, by) for index, hunk, by in done.offsets)
    notes = tuple(_other_results(scratch, tree, files, done))
    return Attempt(PatchState.APPLIES, done.tree, tuple(moved), notes=notes)


def _other_results(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], done: Application
) -> Iterator[str]:
    for file in files:
        named = diff.INDEX.search(file.text) if file.by_git else None
        sides = ((tree, file.old), (done.tree, file.new))
        found = [path and scratch.entry(each, path) for each, path in sides]
        old, new = (entry.object if entry else "0" * 40 for entry in found)
        before, after = (name.decode() for name in named.groups()) if named else ("", "")
        if old.startswith(before) and not new.startswith(after):
            yield (
                f"{file.path} becomes another file than the diff names ({after}): its lines were "
                "edited, or changed on the way"
            )


def _advanced(scratch: Scratch, origin: str, files: Sequence[FileDiff]) -> str:
    try:
        return origin and scratch.apply(origin, diff.joined(files)).tree
    except NotApplicableError:
        return ""


def _wrong(
    scratch: Scratch,
    tree: str,
    files: Sequence[FileDiff],
    before: Sequence[list[bytes]],
    done: Application,
    origin: str,
) -> list[Conflict]:
    """The files that git did not change exactly as a diff says.

    git compares bytes, so a last line without line feed matches the start of a longer line.
    """
    read_by_git = [(file.path, file.counts) for file in done.files]
    if read_by_git != [(file.path, file.counts) for file in files]:
        return [
            Conflict(files[0].path, 0, "git reads the diff otherwise without the files left out")
        ]
    moved = {(index, hunk): by for index, hunk, by in done.offsets}
    found = []
    for index, file in enumerate(files):
        new = file_lines(scratch, done.tree, file.new) or []
        for number, hunk in reversed([*enumerate(file.hunks, 1)]):
            at = max(hunk.new_start - 1, 0) + moved.get((index, number), 0)
            if new[at : at + len(hunk.after)] != hunk.after:
                break
            new[at : at + len(hunk.after)] = hunk.before
        if file.binary or (new == before[index] and _has_mode(scratch, done.tree, file)):
            continue
        why = "git can apply it, but not to exactly these lines"
        found += conflicts_of(scratch, tree, file, origin) or [Conflict(file.path, 0, why)]
    return found


def _has_mode(scratch: Scratch, tree: str, file: FileDiff) -> bool:
    entry = scratch.entry(tree, file.new) if file.new else None
    return not file.new_mode or (entry is not None and entry.mode == file.new_mode)


def _is_there(scratch: Scratch, tree: str, files: Sequence[FileDiff]) -> bool:
    """Whether a tree contains the change: its reverse applies, line by line."""
    for step in reversed(diff.steps(files)):
        for file in step:
            lines = file_lines(scratch, tree, file.new) or []
            if not all(places(hunk.after, lines) for hunk in file.hunks):
                return False
            if not _has_mode(scratch, tree, file):
                return False
        try:
            tree = scratch.apply(tree, diff.joined(step), back=True).tree
        except NotApplicableError:
            return False
    return True


def targets_of(files: Sequence[FileDiff]) -> list[str]:
    """The files that a diff expects to exist, and does not make itself.

    diff(1) names an old file for a new one too; its only hunk has no old lines.
    """
    found, made = [], set[str]()
    for file in files:
        new = file.hunks and not any(hunk.before for hunk in file.hunks)
        if file.old is not None and file.old not in made and not new:
            found.append(file.old)
        made |= {file.new} if file.new else set()
    return found


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
