"""One diff against one tree: whether it applies, how, or exactly why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from builder import diffs
from builder.diffs import FileDiff, Hunk
from builder.tools import links
from builder.tools.scratch import LINK, Application, NotApplicableError, Scratch

State = Literal[
    "applies",
    "offset",
    "fuzz",
    "merged",
    "upstream",
    "superseded",
    "absent",
    "partly",
    "conflicts",
]
FITS: frozenset[State] = frozenset({"applies", "offset", "fuzz", "merged"})


@dataclass(frozen=True, slots=True)
class Conflict:
    """A hunk (from 1; 0: the whole file) that finds no place, and the lines that differ."""

    path: str
    hunk: int
    why: str
    expected: tuple[str, ...] = ()
    """Lines that the hunk expects and that are not there."""
    found: tuple[str, ...] = ()
    """What stands there in their place."""

    def __str__(self) -> str:
        where = f"{self.path}, hunk {self.hunk}" if self.hunk else self.path
        lines = [f"{where}: {self.why}"]
        lines += [f"  - {line}" for line in self.expected]
        lines += [f"  + {line}" for line in self.found]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a diff on a tree; ``tree`` is the new one where it applies."""

    state: State
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
) -> Fate:
    """Apply a diff to a tree, exactly: every line of context must be there, as it is.

    A hunk may have moved, where its lines stand in one place only.  ``fuzz`` and ``three_way``
    allow what their names say.
    """
    text = diffs.joined(files)
    try:
        done = scratch.apply(tree, text)
    except NotApplicableError as error:
        return _otherwise(scratch, tree, files, str(error), fuzz, three_way)
    twice = _ambiguous(scratch, tree, files, done)
    if twice:
        return Fate("conflicts", tree, conflicts=tuple(twice))
    leaving = _leaving(scratch, tree, done)
    if leaving:
        return Fate("conflicts", tree, conflicts=tuple(leaving))
    return Fate("offset" if done.offsets else "applies", done.tree, done.offsets)


def _otherwise(
    scratch: Scratch,
    tree: str,
    files: Sequence[FileDiff],
    said: str,
    fuzz: int,
    three_way: bool,
) -> Fate:
    """The diff does not fit exactly: it is there already, may be bent, or conflicts."""
    text = diffs.joined(files)
    try:
        scratch.apply(tree, text, back=True)
    except NotApplicableError:
        pass
    else:
        return Fate("upstream", tree)
    ways: list[tuple[State, int, bool]] = []
    ways += [("fuzz", fuzz, False)] if fuzz else []
    ways += [("merged", 0, True)] if three_way else []
    for state, lines, merge in ways:
        try:
            done = scratch.apply(tree, text, fuzz=lines, three_way=merge)
        except NotApplicableError:
            continue
        if done.tree == tree:
            return Fate("upstream", tree)
        leaving = _leaving(scratch, tree, done)
        if not leaving:
            return Fate(state, done.tree, done.offsets)
        return Fate("conflicts", tree, conflicts=tuple(leaving))
    conflicts = [conflict for file in files for conflict in _conflicts(scratch, tree, file)]
    if not conflicts:
        conflicts = [Conflict(files[0].path, 0, _reasons(said))]
    return Fate(_misfit(scratch, tree, files, conflicts), tree, conflicts=tuple(conflicts))


def _misfit(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], conflicts: Sequence[Conflict]
) -> State:
    """Why a diff does not fit: its files are gone, its lines are, or only some hunks fit."""
    if is_absent(scratch, tree, targets_of(files)):
        return "absent"
    if all(_superseded(scratch, tree, file) for file in files):
        return "superseded"
    whole = any(conflict.hunk == 0 for conflict in conflicts)
    hunks = sum(len(file.hunks) for file in files)
    return "partly" if not whole and len(conflicts) < hunks else "conflicts"


def targets_of(files: Sequence[FileDiff]) -> list[str]:
    """The files that a diff expects to be there.

    diff(1) names the old file of a new one as well; its only hunk has nothing before it.
    """
    made = [file for file in files if file.hunks and not any(h.before for h in file.hunks)]
    return [file.old for file in files if file.old is not None and file not in made]


def is_absent(scratch: Scratch, tree: str, paths: Sequence[str]) -> bool:
    """Whether a tree has none of the files that something changes."""
    return bool(paths) and not any(True for _ in scratch.items(tree, *paths))


def _reasons(said: str) -> str:
    """What git gave as the reasons, without the lines that it looked for."""
    prefix = "error: "
    lines = [line.removeprefix(prefix) for line in said.splitlines() if line.startswith(prefix)]
    return "; ".join(line for line in lines if not line.startswith("while searching")) or said


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "replace")


def _lines(scratch: Scratch, tree: str, path: str | None) -> list[bytes] | None:
    content = scratch.file(tree, path) if path else None
    return None if content is None else diffs.lines_of(content)


def places(wanted: Sequence[bytes], lines: Sequence[bytes]) -> list[int]:
    """Where (from 0) ``wanted`` stands in ``lines``, line by line."""
    count = len(wanted)
    return [at for at in range(len(lines) - count + 1) if lines[at : at + count] == wanted]


def _ambiguous(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], done: Application
) -> list[Conflict]:
    """Hunks that moved although their lines stand in more than one place: which one is meant?"""
    by_path = {file.path: file for file in files}
    found = []
    for path, number, _ in done.offsets:
        file = by_path.get(path)
        lines = _lines(scratch, tree, file.old) if file else None
        if file is None or lines is None or number > len(file.hunks):
            continue
        count = len(places(file.hunks[number - 1].before, lines))
        if count > 1:
            found.append(Conflict(path, number, f"moved, and its lines stand in {count} places"))
    return found


def _leaving(scratch: Scratch, tree: str, done: Application) -> list[Conflict]:
    """Symbolic links that lead out of the tree since the diff was applied."""
    if not any(LINK in (old.mode, new.mode) for old, new in scratch.changes(tree, done.tree)):
        return []
    before = links.leaving(scratch.links(tree))
    return [
        Conflict(path, 0, f"would be a link to {target}, outside the tree")
        for path, target in links.leaving(scratch.links(done.tree)).items()
        if before.get(path) != target
    ]


def _conflicts(scratch: Scratch, tree: str, file: FileDiff) -> list[Conflict]:
    lines = _lines(scratch, tree, file.old)
    if file.old is None:
        there = _lines(scratch, tree, file.new) is not None
        return [Conflict(file.path, 0, "is there already, with other contents")] if there else []
    if lines is None:
        return [Conflict(file.old, 0, "is not there")]
    if file.binary:
        return [Conflict(file.path, 0, "is not the binary file that the patch was made for")]
    found = []
    for number, hunk in enumerate(file.hunks, 1):
        if not places(hunk.before, lines):
            found.append(_mismatch(file.path, number, hunk, lines))
    return found


def _mismatch(path: str, number: int, hunk: Hunk, lines: list[bytes]) -> Conflict:
    """The hunk against the part of the file that is most like what it expects."""
    start = _likeliest(hunk.before, lines)
    if start is None:
        return Conflict(
            path,
            number,
            f"nothing like it is in the file (it was at line {hunk.start})",
            tuple(_text(line) for line in hunk.removed or hunk.before),
        )
    actual = lines[max(start, 0) : start + len(hunk.before)]
    expected = tuple(_text(line) for line in hunk.before if line not in actual)
    found = tuple(_text(line) for line in actual if line not in hunk.before)
    if not expected and not found:
        return Conflict(path, number, f"its lines are in another order from line {start + 1} on")
    if list(expected) == list(found) or _only_ends(hunk.before, actual):
        return Conflict(path, number, "the lines end otherwise (CRLF, or LF)", expected[:1])
    return Conflict(path, number, f"other lines from line {max(start, 0) + 1} on", expected, found)


def _only_ends(expected: Sequence[bytes], actual: Sequence[bytes]) -> bool:
    return [line.rstrip(b"\r\n") for line in expected] == [line.rstrip(b"\r\n") for line in actual]


def _likeliest(wanted: Sequence[bytes], lines: Sequence[bytes]) -> int | None:
    """The start at which most lines of ``wanted`` stand where they should; None: nowhere."""
    where: dict[bytes, list[int]] = {}
    for at, line in enumerate(lines):
        where.setdefault(line.strip(), []).append(at)
    votes: Counter[int] = Counter()
    for index, line in enumerate(wanted):
        if line.strip():
            for at in where.get(line.strip(), [])[:50]:
                votes[at - index] += 1
    return votes.most_common(1)[0][0] if votes else None


def _superseded(scratch: Scratch, tree: str, file: FileDiff) -> bool:
    """Whether what the diff mends is gone: its file, or every line that it would take away."""
    lines = _lines(scratch, tree, file.old)
    if file.old is None:
        return False
    if lines is None:
        return True
    there = {line.strip() for line in lines}
    removed = [line.strip() for hunk in file.hunks for line in hunk.removed if line.strip()]
    return bool(removed) and not any(line in there for line in removed)
