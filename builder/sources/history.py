"""Whether the history of a target contains a patch, and which commits changed its lines.

git decides: ancestry, and git-patch-id(1) of the commits since the merge base that touch the files
of the patch, also of merged branches whose changes a merge has dropped (``--full-history``).  A
change that came in other words is unknown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import ceil
from typing import NamedTuple

from builder.sources import diff
from builder.sources.diff import FileDiff, Hunk, Piece
from builder.sources.mirrors import Repositories
from builder.sources.repository import GITLINK, Application, Scratch

# Hunks that do not fit a file: where they belong, and which lines differ.

NAME = re.compile(rb"\w{3,}")
MOST_SHOWN = 20
"""Lines of one side of a conflict that are shown."""
SPREAD = 8
"""Lines that may have come between the lines of one hunk."""
SECTION = 150
"""Lines below its heading in which a hunk is expected."""
ENOUGH = 0.5
"""The least weight of a place: one line that occurs twice in the file has it."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A hunk (from 1; 0: the whole file) that does not fit, and the lines that differ."""

    path: str
    hunk: int
    why: str
    expected: tuple[str, ...] = ()
    """Lines that the hunk expects and the file lacks."""
    found: tuple[str, ...] = ()
    """The lines of the file in their place."""

    def __str__(self) -> str:
        where = f"{self.path}, hunk {self.hunk}" if self.hunk else self.path
        lines = [f"{where}: {self.why}"]
        for sign, side in (("-", self.expected), ("+", self.found)):
            lines += [f"  {sign} {line}" for line in side[:MOST_SHOWN]]
            if len(side) > MOST_SHOWN:
                lines.append(f"  {sign} ... {len(side) - MOST_SHOWN} more lines")
        return "\n".join(lines)


def trivial(line: bytes) -> bool:
    """Whether a line identifies no place: it is blank, or a bracket."""
    return NAME.search(line) is None


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "replace")


def file_lines(scratch: Scratch, tree: str, path: str | None) -> list[bytes] | None:
    """The lines of a file of a tree, None if there is none."""
    content = scratch.file(tree, path) if path else None
    return None if content is None else diff.lines_of(content)


def places(wanted: Sequence[bytes], lines: Sequence[bytes]) -> list[int]:
    """The indices (from 0) at which ``lines`` contain ``wanted``, line by line."""
    count = len(wanted)
    return [at for at in range(len(lines) - count + 1) if lines[at : at + count] == wanted]


def conflicts_of(scratch: Scratch, tree: str, file: FileDiff, origin: str) -> list[Conflict]:
    """The hunks of one file of a diff that do not fit a tree."""
    lines = file_lines(scratch, tree, file.old)
    if file.old is None:
        there = file_lines(scratch, tree, file.new) is not None
        return [Conflict(file.path, 0, "exists already, with other contents")] if there else []
    if lines is None:
        return [Conflict(file.old, 0, "does not exist")]
    if file.binary:
        entry = scratch.entry(tree, file.old)
        if file.preimage and entry and entry.object.startswith(file.preimage):
            return []
        return [Conflict(file.path, 0, "is another binary file than the patch was made for")]
    found = []
    for number, hunk in enumerate(file.hunks, 1):
        fits = places(hunk.before, lines)
        if not fits:
            alike = places(
                *([line.rstrip(b"\n") for line in side] for side in (hunk.before, lines))
            )
            where = range(alike[0], alike[0] + len(hunk.before)) if alike else None
            where = where or followed(scratch, tree, file, hunk, origin) or _likeliest(hunk, lines)
            where = where or followed(scratch, tree, file, hunk, origin, removed=True)
            found.append(_mismatch(file.path, number, hunk, lines, where))
        elif why := _unplaced(hunk, fits, len(lines)):
            found.append(Conflict(file.path, number, why))
    return found


def _unplaced(hunk: Hunk, fits: Sequence[int], count: int) -> str:
    """Why git does not apply a hunk in a place with its lines (apply.c, apply_one_fragment)."""
    if hunk.start <= 1 and 0 not in fits:
        return "the file has other lines before its first ones now"
    if hunk.lines[-1][:1] == b" " or fits[-1] + len(hunk.before) == count:
        return ""
    if hunk.lines[0][:1] == b" ":
        return "it ends with the file, which goes on after these lines now"
    return "git does not place lines without context: `git diff -U3` writes it"


def original_blob(scratch: Scratch, file: FileDiff, origin: str) -> str | None:
    """The blob that a diff was made for, if known: by its name, or from the tree ``origin``."""
    blob = scratch.blob_named(file.preimage) if file.preimage else None
    if blob is None and origin:
        item = scratch.entry(origin, file.old or "")
        blob = item.object if item else None
    return blob


def followed(
    scratch: Scratch, tree: str, file: FileDiff, hunk: Hunk, origin: str, *, removed: bool = False
) -> range | None:
    """Where the lines of a hunk are in a tree, by git's diff since the file it was made for.

    None if that file is unknown, or none of the telling lines is left; with ``removed`` the lines
    in the place of removed ones.
    """
    now, blob = scratch.entry(tree, file.old or ""), original_blob(scratch, file, origin)
    if now is None or blob is None:
        return None
    before = diff.lines_of(scratch.read(blob))
    starts = places(hunk.before, before)
    if not starts:
        return None
    start = min(starts, key=lambda at: abs(at - hunk.start + 1))
    votes, instead = defaultdict[int, float](float), None
    changes = [(0, 0, 0, 0), *scratch.line_changes(blob, now.object)]
    for old in range(start, start + len(hunk.before)):
        at, count, new, new_count = [each for each in changes if each[0] <= old][-1]
        if old < at + count:
            instead = instead or range(new, new + new_count)
        elif not trivial(before[old]):
            votes[start + new + new_count - at - count] += 1 / before.count(before[old])
    return _best(votes, hunk, 0.0) or (instead if removed else None)


def _likeliest(hunk: Hunk, lines: Sequence[bytes]) -> range | None:
    """The most likely place of a hunk in a file, by its rare lines and its heading; None: no clue.

    git-diff(1): "the hunk header mentions the name of the function to which the hunk applies".
    """
    there: dict[bytes, list[int]] = {}
    for at, line in enumerate(lines):
        there.setdefault(line.strip(), []).append(at)
    votes = defaultdict[int, float](float)
    for index, line in enumerate(hunk.before):
        found = [] if trivial(line) else there.get(line.strip(), [])
        for at in found:
            votes[at - index] += 1 / len(found)
    heading = hunk.heading.strip()
    headings = [at for at, line in enumerate(lines) if heading and line.startswith(heading)]
    for start in votes:
        if any(0 <= start - at <= SECTION for at in headings):
            votes[start] += 1 / len(headings)
    return _best(votes, hunk, ENOUGH)


def _best(votes: Mapping[int, float], hunk: Hunk, least: float) -> range | None:
    """The place with the most votes for its start, with lines that came between; None: too few."""
    start = max(votes, key=lambda at: (votes[at], -abs(at - hunk.start + 1)), default=None)
    if start is None or votes[start] < least or not votes[start]:
        return None
    near = [at for at in votes if abs(at - start) <= SPREAD and votes[at] >= ENOUGH] or [start]
    return range(max(min(near), 0), max(near) + len(hunk.before))


def _mismatch(
    path: str, number: int, hunk: Hunk, lines: list[bytes], where: range | None
) -> Conflict:
    if where is None:
        return Conflict(
            path,
            number,
            f"the file has no similar lines (it was at line {hunk.start})",
            tuple(_text(line) for line in hunk.removed or hunk.before),
        )
    actual = lines[where.start : where.stop]
    ends = [[line.rstrip(b"\r\n") for line in side] for side in (hunk.before, actual)]
    if ends[0] == ends[1]:
        line = next((_text(each) for each in hunk.before if each not in actual), "")
        why = "the line ends differ (CRLF or LF)"
        if [each.rstrip(b"\n") for each in hunk.before] == [each.rstrip(b"\n") for each in actual]:
            last = hunk.before[-1].endswith(b"\n")
            why = f"the file {'has no line feed at its end' if last else 'goes on after this line'}"
        return Conflict(path, number, why, (line,))
    expected, found = list[str](), list[str]()
    matcher = SequenceMatcher(None, hunk.before, actual, autojunk=False)
    for what, a, b, c, d in matcher.get_opcodes():
        if what != "equal":
            expected += map(_text, hunk.before[a:b])
            found += map(_text, actual[c:d])
    if sorted(expected) == sorted(found):
        why = f"its lines are in another order, from line {where.start + 1}"
        return Conflict(path, number, why)
    why = f"the lines differ, from line {where.start + 1}"
    return Conflict(path, number, why, tuple(expected), tuple(found))


# Whether the history of a target has a patch.

MOST_COMMITS = 5
MOST_VERSIONS = 1000
"""The newest commits that touch the files of a patch, whose changes are read."""
MOST_FILES = 200
"""Files that one commit changes, up to which renames are looked for in it."""
ONE_BY_ONE = ("--full-history", "--no-merges")
MERGES = ("--first-parent", "--merges", "--diff-merges=first-parent")


class PatchedCommit(NamedTuple):
    """A commit, and its change of the files of a patch since its first parent."""

    name: str
    message: str
    text: bytes
    id: str
    """git-patch-id(1) of the text; empty if it changes no file."""


class Introduction(NamedTuple):
    """How a target got a patch: the commit (empty: git shows none), and whether it still has it."""

    by: str = ""
    kept: bool = True
    """Not the merge that dropped it (``-s ours``)."""
    reverted_by: str = ""
    lines_left: bool = True
    """Half of the lines that it adds are in the files; for a patch that only removes, are not."""

    @property
    def arrived(self) -> bool:
        """Whether upstream took it, and did not revert it."""
        return bool(self.by) and self.kept and not self.reverted_by

    @property
    def lasts(self) -> bool:
        """Whether the target has the patch."""
        return self.arrived and self.lines_left


class History:
    """The commits of a target, ``until``, in the repository at ``url``.

    ``pin`` is the commit of the recipe, the origin of patches without commits of their own; empty
    if the target is the pin itself.  Raises ``FetchError`` if they cannot be fetched.
    """

    def __init__(self, repositories: Repositories, url: str, until: str, pin: str = "") -> None:
        self._repositories = repositories
        self._scratch = repositories.scratch
        self._url = url
        self._until = until
        self._pin = pin
        self._known: dict[tuple[str, ...], list[PatchedCommit]] = {}
        repositories.walk(url, *filter(None, (pin, until)))

    def name(self, commit: str) -> str:
        """A commit for display: abbreviated name, day, subject."""
        return self._scratch.text("log", "--no-walk", "--format=%h %cs %s", commit)

    def _since(self, piece: Piece) -> str:
        """The merge base of the target and the commit that a patch was made for, or the pin.

        Empty, which is all of the history, if that is unknown or the target itself.
        """
        origin = piece.base or self._pin
        if not origin or self._scratch.missing([origin]):
            return ""
        base = next(iter(self._scratch.merge_bases(origin, self._until)), "")
        return "" if base == self._until else base

    def _commits(
        self, since: str, until: str, paths: Sequence[str], *which: str, url: str = ""
    ) -> list[PatchedCommit]:
        """The commits after ``since`` (empty: all) that touch some files, oldest first.

        Without ``which`` (MERGES) each one that is no merge; ``url`` has them if not the target's.
        """
        key = (since, until, *which, *paths)
        if key not in self._known:
            listing = self._scratch.text(
                *("log", "--topo-order", f"--max-count={MOST_VERSIONS}", *(which or ONE_BY_ONE)),
                *("--no-renames", "--raw", "--no-abbrev", "--format=%x00%H%x01%P%x01%B%x01"),
                *(until, *([f"^{since}"] if since else []), "--", *paths),
            )
            rows = [row.split("\x01", 3) for row in listing.split("\0")[:0:-1]]
            changed = [blob for *_, changes in rows for blob in _blobs(changes)]
            self._repositories.contents(url or self._url, changed)
            spans = [(name, parents.partition(" ")[0]) for name, parents, *_ in rows]
            texts, ids = self._scratch.diffs_of(spans, paths)
            self._known[key] = [
                PatchedCommit(name, message, texts.get(name, b""), ids.get(name, ""))
                for name, _, message, _ in rows
            ]
        return self._known[key]

    # Whether the target contains the patch

    def introduced(
        self, piece: Piece, files: Sequence[FileDiff], *, by_ids: bool = True
    ) -> Introduction:
        """How the target got a patch.

        Without ``by_ids`` or ``files`` only its own commits are looked for: patch ids need the
        contents of many files.
        """
        by, known = "", piece.head and not self._scratch.missing([piece.head])
        if known and self._scratch.is_ancestor(piece.head, self._until):
            by = piece.head
        elif by_ids and files:
            by = self._same_change(piece, files)
        if not by:
            return Introduction()
        merge, paths = self._scratch.merge_of(by, self._until) or by, paths_of(files)
        if not files:
            return Introduction(merge)
        parent = self._scratch.text("log", "--no-walk", "--format=%P", merge).partition(" ")[0]
        for commit in filter(None, (merge, parent)):
            items = (self._scratch.entry(commit, path) for path in paths)
            self._repositories.contents(self._url, [item.object for item in items if item])
        spans = [(merge, parent), (parent, merge)] if parent else [(merge, "")]
        ids = self._scratch.diffs_of(spans, paths)[1]
        reverted = self._reverted_by(merge, {by, merge}, paths, ids.get(merge), ids.get(parent))
        left = self._has_lines(files, parent)
        return Introduction(merge, merge == by or merge in ids, reverted, left)

    def described(self, found: Introduction) -> str:
        """Where a patch came from, and why the target has it no more, in a sentence."""
        what = f"upstream introduced it with {self.name(found.by)}"
        if found.reverted_by:
            return f"{what}, and reverted it with {self.name(found.reverted_by)}"
        return what if found.lasts else f"{what}, but the tree lacks its lines"

    def _same_change(self, piece: Piece, files: Sequence[FileDiff]) -> str:
        """The commit with the patch id of a patch; or the last one, if it has each commit of it."""
        paths, since, first = paths_of(files), self._since(piece), dict[str, str]()
        commits = self._commits(since, self._until, paths)
        for commit in (*commits, *self._commits(since, self._until, paths, *MERGES)):
            first.setdefault(commit.id, commit.name)
        texts = (b"".join(file.text for file in step) for step in diff.steps(files))
        ids = {self._scratch.patch_id(text) for text in texts}
        if not ids <= first.keys() and piece.head and not self._scratch.missing([piece.base]):
            own = self._commits(piece.base, piece.head, paths, url=piece.url)
            ids = {commit.id for commit in own}
        if not ids or "" in ids or not ids <= first.keys():
            return ""
        return next(name for key, name in reversed(first.items()) if key in ids)

    def _reverted_by(
        self,
        by: str,
        introduced: set[str],
        paths: Sequence[str],
        own: str | None,
        inverse: str | None,
    ) -> str:
        """The commit that reverted what ``by`` introduced; empty if none did.

        It has the patch id of the inverse, or says so.  The last one counts, since a revert may be
        reverted.
        """
        reverted, last = set[str](), ""
        for commit in self._commits(by, self._until, paths):
            named, wanted = (reverted, own) if last else (introduced, inverse)
            again = commit.id and commit.id == wanted
            if again or _reverts(commit.message, named):
                (introduced if last else reverted).add(commit.name)
                last = "" if last else commit.name
        return last

    def _has_lines(self, files: Sequence[FileDiff], parent: str) -> bool:
        """Whether half of the added lines that ``parent`` lacks are there.

        Without any, whether half of the removed ones are gone.
        """
        added, removed, there, gone = 0, 0, 0, 0
        for file in files:
            old, now = (self._lines(file.path, each) for each in (parent, self._until))
            changed = _signed(file.text)
            more = {line[1:] for line in changed if line[:1] == b"+"}
            more = more.difference(old or ()) or more  # lines that the file had tell little
            less = {line[1:] for line in changed if line[:1] == b"-"}
            added, there = added + len(more), there + len(more & (now or set()))
            if now is not None or file.new is None:
                gone += len(less - (now or set()))
            removed += len(less)
        return 2 * there >= added if added else 0 < removed <= 2 * gone

    def _lines(self, path: str, commit: str) -> set[bytes] | None:
        item = self._scratch.entry(commit, path) if commit else None
        if item is None:
            return None
        self._repositories.contents(self._url, [item.object])
        return set(_bare_lines(self._scratch, item.object))

    # Removed and renamed files

    def _remover(self, path: str, piece: Piece) -> str:
        if self._scratch.entry(self._until, path) is not None:
            return ""
        since = self._since(piece)
        return self._scratch.text(
            *("log", "-1", "--full-history", "--no-renames", "--diff-filter=D", "--format=%H"),
            *(self._until, *([f"^{since}"] if since else []), "--", path),
        )

    def moved(self, path: str, piece: Piece) -> tuple[str, list[str]]:
        """The present name of a file, and the commits that renamed it; empty if none did."""
        commits = list[str]()
        while path and len(commits) < MOST_COMMITS and (by := self._remover(path, piece)):
            path = self._renamed_by(by, path)
            commits.append(self.name(by))
        return (path, commits) if commits else ("", [])

    def _renamed_by(self, commit: str, path: str) -> str:
        blobs = self._scratch.blobs_of(commit)
        alike = len(blobs) <= 2 * MOST_FILES  # else only renames of unchanged files
        self._repositories.contents(self._url, blobs if alike else [])
        listing = self._scratch.run(
            *("diff-tree", "-r", "-z", "-M" if alike else "-M100%", "--diff-filter=R"),
            *("--no-commit-id", "--name-status", commit),
        )
        fields = listing.decode("utf-8", "surrogateescape").split("\0")
        pairs = zip(fields[1::3], fields[2::3], strict=False)
        return next((new for old, new in pairs if old == path), "")

    # Which commits changed lines

    def nearest(self, piece: Piece, files: Sequence[FileDiff]) -> list[str]:
        """The commit that made most of the changes of a diff, which the target contains."""
        wanted = _signed(diff.joined(files))
        commits = self._commits(self._since(piece), self._until, paths_of(files))
        shares = {each.name: len(wanted & _signed(each.text)) for each in commits}
        best = max(shares, key=lambda name: shares[name], default="")
        return [self.name(best)] if best and shares[best] else []

    def changing(self, conflicts: Iterable[Conflict], piece: Piece) -> list[str]:
        """The commits that changed the lines that a patch expects, newest first.

        They removed the expected lines; if none did, they added the lines that were found instead.
        """
        found: dict[str, None] = {}
        since = self._since(piece)
        for conflict in conflicts:
            if not conflict.hunk:
                by = self._remover(conflict.path, piece)
                found |= {by: None} if by else {}
                continue
            commits = self._commits(since, self._until, [conflict.path])
            for sign, lines in ((b"-", conflict.expected), (b"+", conflict.found)):
                texts = (line.encode() for line in lines)
                wanted = {sign + _bare(text) for text in texts if not trivial(text)}
                by_lines = [each for each in reversed(commits) if wanted & _signed(each.text)]
                found |= dict.fromkeys(each.name for each in by_lines[:MOST_COMMITS])
                if by_lines:
                    break
        return [self.name(commit) for commit in list(found)[:MOST_COMMITS]]


def paths_of(files: Iterable[FileDiff]) -> list[str]:
    """Every path in a diff."""
    return sorted({path for file in files for path in file.paths})


def _blobs(changes: str) -> list[str]:
    """The blobs, old and new, in lines of git's raw format."""
    fields = [line.split(" ") for line in changes.splitlines() if line.startswith(":")]
    return [
        blob for mode, to, *found in fields if GITLINK not in {mode[1:], to} for blob in found[:2]
    ]


def _bare(line: bytes) -> bytes:
    return b"".join(line.split())


def _bare_lines(scratch: Scratch, blob: str) -> list[bytes]:
    return [_bare(line) for line in diff.lines_of(scratch.read(blob))]


def _signed(text: bytes) -> set[bytes]:
    """The telling lines that a diff changes, without white space, after "-" or "+"."""
    lines = (line for line in diff.lines_of(text) if line[:1] in {b"-", b"+"})
    return {
        _bare(line)
        for line in lines
        if not trivial(line[1:]) and not line.startswith((b"--- ", b"+++ "))
    }


def _reverts(message: str, commits: Iterable[str]) -> bool:
    """Whether a message says, as git-revert(1) writes it, that one of these is reverted."""
    named = re.findall(r"This reverts commit ([0-9a-f]{7,40})", message)
    return any(commit.startswith(short) for short in named for commit in commits)


# Hunks that git applied where they may not belong, or that the file has already.

MOST_PLACES = 8
"""Places of a hunk that are named."""
AROUND = 3
"""Lines on each side of a block that identify its place, as many as a diff shows."""
NEAR = 30
"""Lines from the place of a hunk in which a few added lines are looked for."""
DISTINCTIVE = 3
"""The fewest telling lines that identify a change, so that they can be found or missed."""
LONG = 5
"""The fewest telling lines of a block that nobody writes twice."""
SHARE = 0.8
"""The share of the lines of a distinctive block that shows that it is there."""


def doubtful_offsets(
    scratch: Scratch,
    tree: str,
    files: Sequence[FileDiff],
    before: Sequence[Sequence[bytes]],
    done: Application,
    origin: str,
) -> list[Conflict]:
    """Hunks that git applied in a place where they may not belong.

    Their lines occur more than once, or the lines that they were made for have changed, and git
    found a copy of the old lines.  ``before`` are the lines of each file in ``tree``.
    """
    moves = {(index, number): by for index, number, by in done.offsets}
    found = []
    for index, (file, lines) in enumerate(zip(files, before, strict=True)):
        for number, hunk in enumerate(file.hunks, 1):
            moved = moves.get((index, number), 0)
            stands = [str(place + 1) for place in places(hunk.before, lines)]
            if not moved and len(stands) < 2:
                continue
            at = followed(scratch, tree, file, hunk, origin)
            meant = f"; the original ones are at line {at.start + 1}" if at else ""
            if moved and len(stands) > 1:
                at_lines = ", ".join(stands[:MOST_PLACES])
                why = f"moved, and its lines occur in {len(stands)} places: lines {at_lines}{meant}"
                found.append(Conflict(file.path, number, why))
            elif at and abs(at.start - (hunk.start - 1 + moved)) > len(hunk.before):
                changed = "" if len(stands) > 1 else ", and have changed"
                why = f"its lines occur at line {hunk.start + moved}{meant}{changed}"
                found.append(Conflict(file.path, number, why))
    return found


@dataclass(frozen=True, slots=True)
class _Text:
    """A file of a tree without white space; ``made_for``: the lines that a diff expects."""

    path: str
    lines: list[bytes]
    made_for: list[bytes] | None
    moved: bool
    """Hunks were applied elsewhere than the diff says."""


def doubles(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], done: Application, origin: str
) -> list[Conflict]:
    """Blocks of an applied diff that ``tree`` has already, since the diff was made.

    Most lines of a distinctive block stand in one of the diff's files; or all of a shorter one
    near its place.
    """
    moved = {files[index].path for index, _, _ in done.offsets}
    texts: dict[str, _Text] = {}
    for file in files:
        old = scratch.entry(tree, file.old) if file.old and not file.binary else None
        if old is not None:
            blob = original_blob(scratch, file, origin)
            made_for = _bare_lines(scratch, blob) if blob else None
            lines = _bare_lines(scratch, old.object)
            texts[file.path] = _Text(file.path, lines, made_for, file.path in moved)
    found = []
    for file in files:
        text = texts.get(file.path)
        old = scratch.entry(tree, file.old or "")
        new = scratch.entry(done.tree, file.new) if file.new else None
        if text is None or old is None or new is None:
            continue
        after = _bare_lines(scratch, new.object)
        changes = scratch.line_changes(old.object, new.object)
        last = max((start + count for start, count, *_ in changes), default=0)
        for start, count, new_start, new_count in changes:
            added = after[new_start : new_start + new_count]
            removed = text.lines[start : start + count]
            fresh = [line for line in added if line not in removed and not trivial(line)]
            span = len(added) + SPREAD
            double = _double(fresh, text, range(start, start + count), span, last)
            if double is None:
                others = [each for each in texts.values() if each is not text]
                double = _elsewhere(fresh, text, others, span)
            if double is not None:
                why = f"the lines that it adds at line {start + 1} are already at {double}"
                found.append(Conflict(file.path, 0, why))
    return found


def _double(fresh: Sequence[bytes], text: _Text, place: range, span: int, last: int) -> str | None:
    """Where a file has the telling lines of a block already; None if it has not.

    If the file that the diff was made for is unknown, one copy of the block is a double that is not
    in its own context; several copies are a habit of the file.  Where nothing moved, the copy must
    have all of its lines.  A short block must also stand below ``last``, the line where the last
    hunk ends: further up it would have moved the hunk, unless the file had it before.
    """
    there = _standing(fresh, text.lines, span) if fresh else []
    if text.made_for is None:
        around = text.lines[max(place.start - AROUND, 0) : place.stop + AROUND]
        if len(there) != 1 or set(fresh) <= set(around):
            return None
        copy = set(text.lines[there[0] : there[0] + span])
        since = len(set(fresh)) >= LONG or there[0] >= last
        if not text.moved and not (since and set(fresh) <= copy):
            return None
        near = AROUND if len(fresh) == 1 else len(text.lines)
    elif len(there) <= len(_standing(fresh, text.made_for, span)):
        return None
    else:
        anywhere = text.moved or _is_own(fresh, text)
        near = AROUND if len(fresh) == 1 else len(text.lines) if anywhere else NEAR
    at = min(there, key=lambda each: abs(each - place.start))
    first = place.start - (span - SPREAD) - near
    return f"line {at + 1}" if first <= at <= place.stop + near else None


def _elsewhere(
    fresh: Sequence[bytes], text: _Text, others: Sequence[_Text], span: int
) -> str | None:
    """Where another file of the diff has a distinctive block since the diff was made."""
    if not _is_own(fresh, text):
        return None
    for other in others:
        there = _standing(fresh, other.lines, span)
        if other.made_for is not None and len(there) > len(_standing(fresh, other.made_for, span)):
            return f"line {there[0] + 1} of {other.path}"
    return None


def _is_own(fresh: Sequence[bytes], text: _Text) -> bool:
    return sum(line not in (text.made_for or ()) for line in fresh) >= DISTINCTIVE


def _standing(wanted: Sequence[bytes], lines: Sequence[bytes], span: int) -> list[int]:
    """Where ``lines`` have enough of the wanted ones within ``span`` lines; none overlap."""
    needed = set(wanted)
    enough = len(needed) if len(needed) < DISTINCTIVE else ceil(SHARE * len(needed))
    found, end = list[int](), 0
    for at, line in enumerate(lines):
        if at >= end and line in needed and len(needed & set(lines[at : at + span])) >= enough:
            found.append(at)
            end = at + span
    return found
