"""One diff against one tree: whether it applies, how, or exactly why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from builder.patches import diff
from builder.patches.alignment import LEFT, LineMap, Place, likeliest, resemblance, trivial, words
from builder.patches.diff import FileDiff, Hunk
from builder.tools.git import links
from builder.tools.git.repository import SYMLINK
from builder.tools.git.scratch import Application, NotApplicableError, Scratch

State = Literal[
    "applies",
    "offset",
    "fuzz",
    "merged",
    "upstream",
    "not applicable",
    "absent",
    "partly",
    "conflicts",
]
FITS: frozenset[State] = frozenset({"applies", "offset", "fuzz", "merged"})
MOST_SHOWN = 20
"""Lines of one side of a conflict that are shown."""
MOST_PLACES = 8
"""Places of a hunk that are named."""


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
    at: Place | None = None
    """The part of the file that the hunk is for."""

    def __str__(self) -> str:
        where = f"{self.path}, hunk {self.hunk}" if self.hunk else self.path
        lines = [f"{where}: {self.why}"]
        for sign, side in (("-", self.expected), ("+", self.found)):
            lines += [f"  {sign} {line}" for line in side[:MOST_SHOWN]]
            if len(side) > MOST_SHOWN:
                lines.append(f"  {sign} ... {len(side) - MOST_SHOWN} more lines")
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
    like: str = "",
) -> Fate:
    """Apply a diff to a tree, exactly: every line of context must be there, as it is.

    A hunk may have moved, where its lines stand in one place only.  ``fuzz`` and ``three_way``
    allow what their names say.  ``like`` is a tree that the diff fits, where one is known: from
    there its lines are followed.
    """
    text = diff.joined(files)
    try:
        done = scratch.apply(tree, text)
    except NotApplicableError as error:
        return _otherwise(scratch, tree, files, str(error), fuzz, three_way, like)
    doubtful = _doubtful(scratch, tree, files, done, like)
    if doubtful:
        bent = _bent(scratch, tree, files, "merged", 0) if three_way else None
        return bent or Fate("conflicts", tree, conflicts=tuple(doubtful))
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
    like: str,
) -> Fate:
    """The diff does not fit exactly: it is there already, may be bent, or conflicts."""
    try:
        scratch.apply(tree, diff.joined(files), back=True)
    except NotApplicableError:
        pass
    else:
        return Fate("upstream", tree)
    bent = _bent(scratch, tree, files, "fuzz", fuzz) if fuzz else None
    if bent is None and three_way:
        bent = _bent(scratch, tree, files, "merged", 0)
    if bent is not None:
        return bent
    conflicts = [found for file in files for found in _conflicts(scratch, tree, file, like)]
    if not conflicts:
        conflicts = [Conflict(files[0].path, 0, _reasons(said))]
    return Fate(_misfit(scratch, tree, files, conflicts, like), tree, conflicts=tuple(conflicts))


def _bent(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], state: State, fuzz: int
) -> Fate | None:
    """What becomes of the diff with ``fuzz``, or without by a three-way merge; None: nothing."""
    try:
        done = scratch.apply(tree, diff.joined(files), fuzz=fuzz, three_way=not fuzz)
    except NotApplicableError:
        return None
    if not fuzz and not done.merged:
        return None  # git does not have what the diff was made for, and applied it as it is
    if done.tree == tree:
        return Fate("upstream", tree)
    leaving = _leaving(scratch, tree, done)
    if leaving:
        return Fate("conflicts", tree, conflicts=tuple(leaving))
    return Fate(state, done.tree, done.offsets)


def _misfit(
    scratch: Scratch,
    tree: str,
    files: Sequence[FileDiff],
    conflicts: Sequence[Conflict],
    like: str,
) -> State:
    """Why a diff does not fit: its files are gone, its lines are, or only some hunks fit."""
    if is_absent(scratch, tree, targets_of(files)):
        return "absent"
    if all(_lacks(scratch, tree, file, conflicts, like) for file in files):
        return "not applicable"
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
    return None if content is None else diff.lines_of(content)


def places(wanted: Sequence[bytes], lines: Sequence[bytes]) -> list[int]:
    """Where (from 0) ``wanted`` stands in ``lines``, line by line."""
    count = len(wanted)
    return [at for at in range(len(lines) - count + 1) if lines[at : at + count] == wanted]


def _doubtful(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], done: Application, like: str
) -> list[Conflict]:
    """Hunks that moved to where they may not belong.

    Their lines stand in more than one place, or the lines that they were made for have changed,
    and others are like those: a copy.
    """
    by_path = {file.path: file for file in files}
    found = []
    for path, number, moved in done.offsets:
        file = by_path.get(path)
        lines = _lines(scratch, tree, file.old) if file else None
        if file is None or lines is None or number > len(file.hunks):
            continue
        hunk = file.hunks[number - 1]
        stands = [str(place + 1) for place in places(hunk.before, lines)]
        at = _followed(hunk, _original(scratch, tree, file, like), least=0.0)
        meant = f"; those that it was made for are at line {at.start + 1}" if at else ""
        if len(stands) > 1:
            at_lines = ", ".join(stands[:MOST_PLACES])
            why = f"moved, and its lines stand in {len(stands)} places: lines {at_lines}{meant}"
            found.append(Conflict(path, number, why, at=at))
        elif at and abs(at.start - (hunk.start - 1 + moved)) > len(hunk.before):
            why = f"its lines stand at line {hunk.start + moved}{meant}, and have changed"
            found.append(Conflict(path, number, why, at=at))
    return found


def _leaving(scratch: Scratch, tree: str, done: Application) -> list[Conflict]:
    """Symbolic links that lead out of the tree since the diff was applied."""
    if not any(SYMLINK in (old.mode, new.mode) for old, new in scratch.changes(tree, done.tree)):
        return []
    before = links.leaving(scratch.symlinks(tree))
    return [
        Conflict(path, 0, f"would be a link to {target}, outside the tree")
        for path, target in links.leaving(scratch.symlinks(done.tree)).items()
        if before.get(path) != target
    ]


def _conflicts(scratch: Scratch, tree: str, file: FileDiff, like: str) -> list[Conflict]:
    lines = _lines(scratch, tree, file.old)
    if file.old is None:
        there = _lines(scratch, tree, file.new) is not None
        return [Conflict(file.path, 0, "is there already, with other contents")] if there else []
    if lines is None:
        return [Conflict(file.old, 0, "is not there")]
    if file.binary:
        return [Conflict(file.path, 0, "is not the binary file that the patch was made for")]
    original = _original(scratch, tree, file, like)
    found = []
    for number, hunk in enumerate(file.hunks, 1):
        if not places(hunk.before, lines):
            at = _place(hunk, lines, original)
            found.append(_mismatch(file.path, number, hunk, lines, at))
    return found


def _original(
    scratch: Scratch, tree: str, file: FileDiff, like: str
) -> tuple[list[bytes], LineMap] | None:
    """The file that a diff was made for, where it is there, and how it became that of a tree."""
    now = scratch.entry(tree, file.old or "")
    blob = scratch.blob_named(file.preimage) if file.preimage else None
    if blob is None and like:
        item = scratch.entry(like, file.old or "")
        blob = item.object if item else None
    if now is None or blob is None:
        return None
    return diff.lines_of(scratch.read(blob)), LineMap(scratch.line_changes(blob, now.object))


def _place(
    hunk: Hunk, lines: list[bytes], original: tuple[list[bytes], LineMap] | None
) -> Place | None:
    """The part of a file that a hunk is for: followed from the original, else what is like it."""
    followed, alike = _followed(hunk, original), likeliest(hunk, lines)
    if original is None or followed is not None:
        return followed or alike
    before, where = original
    start = _start(hunk, before)
    if start is None:
        return alike
    # All went from where it was: perhaps to another part of the file, as a whole.
    moved = alike is not None and resemblance(hunk, before, lines[alike.start : alike.stop]) >= 0.5
    return alike if moved else where.place(before, start, start + len(hunk.before))


def _start(hunk: Hunk, before: list[bytes]) -> int | None:
    """Where the lines of a hunk stand in the file that it was made for."""
    starts = places(hunk.before, before)
    return min(starts, key=lambda at: abs(at - hunk.start + 1), default=None)


def _followed(
    hunk: Hunk, original: tuple[list[bytes], LineMap] | None, least: float = LEFT
) -> Place | None:
    """Where the lines of a hunk are now, where more than ``least`` of them are left."""
    if original is None:
        return None
    before, where = original
    start = _start(hunk, before)
    if start is None or where.left(before, start, start + len(hunk.before)) <= least:
        return None
    return where.place(before, start, start + len(hunk.before))


def _mismatch(path: str, number: int, hunk: Hunk, lines: list[bytes], at: Place | None) -> Conflict:
    """The hunk against the part of the file that it is for."""
    if at is None:
        return Conflict(
            path,
            number,
            f"nothing like it is in the file (it was at line {hunk.start})",
            tuple(_text(line) for line in hunk.removed or hunk.before),
        )
    actual = lines[at.start : at.stop]
    if _only_ends(hunk.before, actual):
        line = next((_text(each) for each in hunk.before if each not in actual), "")
        return Conflict(path, number, "the lines end otherwise (CRLF, or LF)", (line,), (), at)
    expected, found = _differing(hunk.before, actual)
    if sorted(expected) == sorted(found):
        why = f"its lines are in another order from line {at.start + 1} on"
        return Conflict(path, number, why, at=at)
    why = f"other lines from line {at.start + 1} on"
    return Conflict(path, number, why, expected, found, at)


def _differing(
    before: Sequence[bytes], actual: Sequence[bytes]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines that only one of two texts has, each in its order."""
    expected: list[str] = []
    found: list[str] = []
    for what, a, b, c, d in SequenceMatcher(None, before, actual, autojunk=False).get_opcodes():
        if what != "equal":
            expected += map(_text, before[a:b])
            found += map(_text, actual[c:d])
    return tuple(expected), tuple(found)


def _only_ends(expected: Sequence[bytes], actual: Sequence[bytes]) -> bool:
    return [line.rstrip(b"\r\n") for line in expected] == [line.rstrip(b"\r\n") for line in actual]


def changing(file: FileDiff) -> list[bytes]:
    """The lines that a diff takes away; where they tell nothing, or are none, those around."""
    removed = [line for hunk in file.hunks for line in hunk.removed]
    around = [line for hunk in file.hunks for line in hunk.before]
    telling = [line for line in removed if not trivial(line)]
    return telling or [line for line in removed or around if words([line])]


def _lacks(
    scratch: Scratch, tree: str, file: FileDiff, conflicts: Sequence[Conflict], like: str
) -> bool:
    """Whether a tree has no line that a diff changes, nor one that it was made into."""
    lines = _lines(scratch, tree, file.old)
    if file.old is None:
        return False
    wanted = changing(file)
    if lines is None or not wanted:
        return lines is None
    there = {line.strip() for line in lines}
    if any(line.strip() in there for line in wanted):
        return False
    instead = _instead(file, wanted, lines, _original(scratch, tree, file, like))
    if instead is None:
        shown = [each.found for each in conflicts if each.path == file.path]
        instead = [line.encode() for found in shown for line in found]
    return not words(wanted) & words(instead)


def _instead(
    file: FileDiff,
    wanted: Sequence[bytes],
    lines: Sequence[bytes],
    original: tuple[list[bytes], LineMap] | None,
) -> list[bytes] | None:
    """What was put in the place of lines that a diff changes; None where that is not known."""
    if original is None:
        return None
    before, where = original
    found: list[bytes] = []
    for hunk in file.hunks:
        start = _start(hunk, before)
        if start is None:
            return None
        for old in range(start, start + len(hunk.before)):
            if before[old] in wanted and where.line(old) is None:
                found += [lines[new] for new in where.instead(old)]
    return found
