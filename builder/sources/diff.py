"""Diffs: which files they change, hunk by hunk; and one diff applied to one tree, exactly.

The format is described by git-diff(1), "Generating patch text with -p", and the unified one of
diff(1) without git's headers.  git applies diffs; this module decides which ones it gets, and
whether it takes the result.  git skips what it does not know (apply.c, find_header): here such a
line is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import groupby
from typing import NamedTuple

from builder.core import archives
from builder.sources.git import (
    GITLINK,
    SYMLINK,
    Application,
    NotApplicableError,
    Scratch,
)

HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: ([^\r\n]*))?")
INDEX = re.compile(rb"^index ([0-9a-f]{7,40})\.\.([0-9a-f]{7,40})", re.MULTILINE)
QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
MODE = re.compile(rb"(?:(?:old|new|new file|deleted file) mode|index \S+) \d{6}\s*$")
MOVED = re.compile(rb"(?:rename|copy) (from|to) ([^\r\n]*)")
HEADER = re.compile(
    rb"(?:old|new|new file|deleted file) mode |(?:rename|copy) (?:from|to) "
    rb"|(?:dis)?similarity index |index "
)
SUBPROJECT = re.compile(rb"[-+]Subproject commit [0-9a-f]{40}\s*$")
MODE_WORDS = dict.fromkeys((b"new file mode ", b"deleted file mode "), b"new mode ")
NEW_MODE = re.compile(rb"^new (?:file )?mode (\d{6})", re.MULTILINE)
RENAMES = re.compile(rb"^(?:rename|copy) from ", re.MULTILINE)
BINARY_PART = re.compile(rb"(?:literal|delta) \d+\s*$")
MESSAGE = re.compile(
    rb"From [0-9a-f]{40} |From \S+ \w{3} \w{3} [ \d]|commit [0-9a-f]{40}\b|# HG changeset patch"
    rb"|(?:From|Subject|Date): "
)
"""The first line of a message: free text up to the next file."""
LOST = re.compile(
    rb"@@+ -\d|\*{15}|(?:\*\*\*|---) \d+(?:,\d+)? (?:\*{4}|-{4})$|diff --(?:cc|combined) "
    rb"|(?:Binary files|Files) .+ and .+ differ$|Only in \S+: \S+$|GIT binary patch$"
    rb"|\d+(?:,\d+)?[acd]\d+(?:,\d+)?$|(?:dis)?similarity index \d+%$"
    rb"|(?:old|new|new file|deleted file) mode \d{6}$|index [0-9a-f]{7,40}\.\.[0-9a-f]{7,40}( |$)"
    rb"|Submodule \S+ [0-9a-f]{7,40}\.{2,3}[0-9a-f]{7,40}"
)
"""A line of a change that git would skip outside of a file: of a merge, or of another format."""
OF_DIFF_R = re.compile(rb"diff (?:-[a-zA-Z]*r[a-zA-Z]*|--recursive) ")
"""A header of ``diff -r``, whose other lines say what it leaves out, in the user's language."""
PARTS = {b"+", b"-", b" ", b"@", b"\\", b">"}
NO_BLOB, EMPTY_BLOB = b"0000000", b"e69de29"


class NotADiffError(ValueError):
    """A text that is no diff, or a diff that git must not apply; the message says why."""


class NoDiffError(NotADiffError):
    """A text without any diff."""


class Hunk(NamedTuple):
    """One hunk: it starts at line ``start`` (from 1) of the old file, ``new_start`` of the new one.

    Its lines begin with "-" (removed), "+" (added) or " " (context).  ``heading`` is the line above
    it that git takes for the start of its section, cut off at 80 bytes; empty if the diff has none.
    """

    lines: tuple[bytes, ...]
    start: int
    heading: bytes = b""
    new_start: int = 0

    def of(self, signs: bytes) -> list[bytes]:
        """The lines with one of these signs, without it."""
        return [line[1:] for line in self.lines if line[:1] in signs]

    @property
    def before(self) -> list[bytes]:
        """The lines that the hunk expects, context included."""
        return self.of(b" -")

    @property
    def after(self) -> list[bytes]:
        """The lines after it is applied, context included."""
        return self.of(b" +")


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The change of one file; ``old`` is None for a new file, ``new`` for a deleted file.

    ``preimage`` is the blob that it was made for, perhaps abbreviated; empty if the diff does not
    name it.  ``step`` tells the diffs of a text apart: each one is made for the result of the one
    before, as mails are, and the second diff of a file.
    """

    old: str | None
    new: str | None
    modes: tuple[str, ...]
    binary: bool
    hunks: tuple[Hunk, ...]
    text: bytes = field(repr=False)
    preimage: str = ""
    step: int = 0

    @property
    def path(self) -> str:
        """The new name, or the old one of a deleted file."""
        return self.new or self.old or ""

    @property
    def paths(self) -> set[str]:
        """Both names."""
        return {path for path in (self.old, self.new) if path}

    @property
    def by_git(self) -> bool:
        """Whether it has git's header, which names the file."""
        return self.text.startswith(b"diff --git ")

    @property
    def new_mode(self) -> str:
        """The mode that it gives to the file; empty if it keeps the mode."""
        found = NEW_MODE.search(self.text) if self.by_git else None
        return found[1].decode() if found else ""

    @property
    def counts(self) -> tuple[int, int] | None:
        """The numbers of added and removed lines; None for a binary file."""
        signs = [line[:1] for hunk in self.hunks for line in hunk.lines]
        return None if self.binary else (signs.count(b"+"), signs.count(b"-"))


def parse(text: bytes) -> list[FileDiff]:
    """The files of a diff, in order; a message before the first one is ignored.

    Raises ``NotADiffError`` for an empty or cut-off diff, a line that belongs to no file, a file
    without a change, a path that is absolute or leaves the tree, a binary file without its
    contents, and a change of a submodule.
    """
    found: list[FileDiff] = []
    step, seen = 0, dict[str, str | None]()
    for line, chained, file in _files(lines_of(text)):
        try:
            _refuse(file)
        except NotADiffError as error:
            raise NotADiffError(f"line {line}: {error}") from error
        moved = file.old != file.new and b"\ncopy from " not in file.text
        again = moved and file.old is not None and seen.get(file.old) == file.old
        if chained or again or file.path in seen:
            step, seen = step + 1, {}
        seen[file.path] = file.old
        found.append(replace(file, step=step))
    if not found:
        raise NoDiffError("it contains no diff")
    return found


def steps(files: Sequence[FileDiff]) -> list[list[FileDiff]]:
    """The files by step."""
    return [list(group) for _, group in groupby(files, lambda file: file.step)]


def lines_of(text: bytes) -> list[bytes]:
    """The lines of a text with their line ends; only a line feed ends one, as in git."""
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


def matches(path: str, globs: Sequence[str]) -> bool:
    """Whether a path matches one of the globs (fnmatch(3), where * matches slashes too)."""
    return any(fnmatchcase(path, glob) for glob in globs)


def without(files: Sequence[FileDiff], globs: Sequence[str]) -> tuple[list[FileDiff], list[str]]:
    """The files that match no glob, and the paths of the others."""
    out = [any(matches(path, globs) for path in file.paths) for file in files]
    kept = [file for file, left in zip(files, out, strict=True) if not left]
    return kept, [file.path for file, left in zip(files, out, strict=True) if left]


def joined(files: Sequence[FileDiff]) -> bytes:
    """The diff of these files; an empty line ends the header of one without hunks."""
    return b"\n".join(file.text for file in files)


def _refuse(file: FileDiff) -> None:
    if not file.paths:
        raise NotADiffError("a part of it has no file name")
    for path in file.paths:
        parts = path.split("/")
        if path.startswith("/") or ".." in parts or "" in parts or ".git" in map(str.lower, parts):
            raise NotADiffError(f"the path {path!r} leads out of the tree")
    lines = [line for hunk in file.hunks for line in hunk.lines]
    if GITLINK in file.modes or all(map(SUBPROJECT.match, lines or [b""])):
        raise NotADiffError(f"it changes the submodule {file.path}: pin another commit instead")
    if file.binary and b"GIT binary patch" not in file.text:
        raise NotADiffError(
            f"the binary file {file.path} differs, and the diff lacks its contents "
            "(`git diff --binary` includes them)"
        )
    _refuse_without_prefix(file)
    if file.hunks and file.text.partition(b"\n")[0].endswith(b"\r") and file.old is None:
        raise NotADiffError(
            f"its own headers end with CRLF, so the line ends of the new file {file.path} are "
            "unknown: write the diff with the line ends that git gave it"
        )
    if file.binary or file.hunks:
        return
    index = INDEX.search(file.text)
    blobs = {each[:7] for each in index.groups()} if index else set()
    if b"\n+++ " in file.text or (len(blobs) > 1 and blobs != {NO_BLOB, EMPTY_BLOB}):
        raise NotADiffError(f"the changed lines of {file.path} are missing")
    if file.old == file.new and not file.new_mode:
        raise NotADiffError(f"it does not change {file.path}")


def _refuse_without_prefix(file: FileDiff) -> None:
    """Raise ``NotADiffError`` if git would remove a directory from the names of a file.

    It removes their first component, a/ and b/ as a rule.  ``diff.noprefix`` writes none, nor does
    ``diff -u src/x.orig src/x``.
    """
    header, *rest = file.text.split(b"\n", 3)
    names = [header[4:], *(line[4:] for line in rest[:1])]
    if file.by_git:
        names = QUOTED.findall(header) if b'"' in header else header.rstrip().split(b" ")[2:]
    prefixes = []  # the first components of names that have several
    for name in names:
        first, slash, _ = name.lstrip(b'"').split(b"\t", 1)[0].partition(b"/")
        if slash and first and b" " not in first:
            prefixes.append(first.decode("utf-8", "replace"))
    alike = len(prefixes) > 1 and len({*prefixes}) == 1 and prefixes[0] not in {"a", "b"}
    # Without git's header a new file has one name, as the other one is /dev/null.
    alone = not file.by_git and len(prefixes) == 1 and None in {file.old, file.new}
    alone = alone and len(prefixes[0]) > 1
    if alike or alone:
        raise NotADiffError(
            f"its names have no a/ and b/: git would remove {prefixes[0]}/ from {file.path} "
            "(`git diff --src-prefix=a/ --dst-prefix=b/` writes them)"
        )


def _files(lines: list[bytes]) -> Iterator[tuple[int, bool, FileDiff]]:
    """The line, from 1, of each file; whether a message stands before it, after another one."""
    at = 0
    free = True  # within a message, where a line may begin like one of a hunk
    first = True
    recursive = False
    while at < len(lines):
        line = lines[at].rstrip(b"\r\n")
        above = lines[at - 1].rstrip() if at else b""
        following = lines[at + 1] if at + 1 < len(lines) else b""
        if line.startswith(b"diff --git ") or (
            line.startswith(b"--- ") and following.startswith(b"+++ ")
        ):
            if free and (HEADER.match(above + b" ") or (_is_part(above) and above != b"---")):
                raise NotADiffError(f"line {at} belongs to no file of the diff: {_shown(above)}")
            end, file = _one_file(lines, at)
            yield at + 1, free and not first, file
            at = end
            free = first = False
            continue
        message = MESSAGE.match(line) is not None
        free = free or message
        named = following.startswith(b"--- ")
        recursive = not message and (recursive or (named and OF_DIFF_R.match(line) is not None))
        lost = (line.startswith(b"diff -") or (recursive and line.strip() != b"")) and not named
        lost = lost or _is_part(line)
        if LOST.match(line) or (not free and lost):
            raise NotADiffError(f"line {at + 1} belongs to no file of the diff: {_shown(line)}")
        at += 1


def _is_part(line: bytes) -> bool:
    """Whether a line may be one of a hunk; "--" is above the signature of a mail."""
    return line[:1] in PARTS and line.strip() not in {b"", b"--"}


def _shown(line: bytes) -> str:
    return line[:80].decode("utf-8", "replace").rstrip()


def _one_file(lines: list[bytes], start: int) -> tuple[int, FileDiff]:
    names: dict[str, str | None] = {}
    modes: list[str] = []
    hunks: list[Hunk] = []
    preimage = ""
    at = start
    if lines[at].startswith(b"diff --git "):
        names["old"], names["new"] = _header_names(lines[at])
        at += 1
        known = dict(names)
        seen: set[bytes] = set()
        while at < len(lines) and (header := HEADER.match(lines[at])):
            word = MODE_WORDS.get(header[0], header[0])
            _read_header(lines[at], names, modes)
            moved = word.startswith((b"rename", b"copy")) and any(known.values())
            if word in seen or moved:
                raise NotADiffError(f"line {at + 1} belongs to another file: {_shown(lines[at])}")
            seen.add(word)
            index = INDEX.match(lines[at])
            preimage = index[1].decode() if index else preimage
            at += 1
    if b"".join(line[:4] for line in lines[at : at + 2]) == b"--- +++ ":
        given = [_name(line[4:].rstrip(b"\r\n"), strip=True) for line in lines[at : at + 2]]
        if not any(names.values()) or given == [names["old"], names["new"]]:
            names["old"], names["new"] = given
            at += 2
    binary = at < len(lines) and lines[at].startswith((b"Binary files ", b"GIT binary patch"))
    if binary:
        at += 1
        while at < len(lines) and BINARY_PART.match(lines[at]):  # an empty line ends each part
            at = next((n + 1 for n in range(at, len(lines)) if not lines[n].strip()), len(lines))
    while at < len(lines) and (hunk := HUNK.match(lines[at])):
        at, parsed = _hunk(lines, at, hunk)
        hunks.append(parsed)
    old, new, text = names.get("old"), names.get("new"), b"".join(lines[start:at])
    return at, FileDiff(old, new, tuple(modes), binary, tuple(hunks), text, preimage)


def _hunk(lines: list[bytes], at: int, header: re.Match[bytes]) -> tuple[int, Hunk]:
    old, new = (int(count) if count is not None else 1 for count in (header[2], header[4]))
    body: list[bytes] = []
    ended: set[bytes] = set()  # the sides, - and +, whose last line has no line feed
    at += 1
    while old > 0 or new > 0:
        line = lines[at] if at < len(lines) else b""
        kind = line[:1]
        if line in {b"\n", b"\r\n"}:  # an empty line of context, its blank lost on the way
            line, kind = b" " + line, b" "
        if kind not in {b" ", b"+", b"-", b"\\"}:
            raise NotADiffError(f"a hunk ends early, at line {at + 1}: {header[0].decode()}")
        if kind == b"\\":
            ended |= _strip_line_end(body)
        elif ended.intersection({b"-", b"+"} if kind == b" " else {kind}):
            raise NotADiffError(f"line {at + 1} follows the last line of the file: {_shown(line)}")
        else:
            old -= kind != b"+"
            new -= kind != b"-"
            body.append(line)
        at += 1
    if at < len(lines) and lines[at].startswith(b"\\"):
        _strip_line_end(body)
        at += 1
    return at, Hunk(tuple(body), int(header[1]), header[5] or b"", int(header[3]))


def _strip_line_end(body: list[bytes]) -> set[bytes]:
    """Remove the line feed of the last line, as the file has none; the sides, - and +, it ends."""
    if not body:
        raise NotADiffError("a hunk begins with a remark on the line before it")
    body[-1] = body[-1].removesuffix(b"\n")
    return {b"-", b"+"} if body[-1][:1] == b" " else {body[-1][:1]}


def _read_header(line: bytes, names: dict[str, str | None], modes: list[str]) -> None:
    moved = MOVED.match(line)
    if moved:
        side = "old" if moved[1] == b"from" else "new"
        names[side] = _name(moved[2], strip=False)
    elif line.startswith((b"new file mode ", b"deleted file mode ")):
        names["old" if line.startswith(b"new") else "new"] = None
    if MODE.match(line):
        modes.append(line.split()[-1].decode())


def _header_names(line: bytes) -> tuple[str | None, str | None]:
    """Both names of ``diff --git a/X b/X``, which are equal where no other line names them."""
    rest = line.rstrip(b"\r\n").removeprefix(b"diff --git ")
    if b'"' in rest:
        old, *new = (_name(found[0], strip=True) for found in QUOTED.finditer(rest + b' ""'))
        return (old, old) if new[:1] == [old] else (None, None)
    half = (len(rest) - 1) // 2
    first, between, second = rest[:half], rest[half : half + 1], rest[half + 1 :]
    if between == b" " and first.split(b"/", 1)[-1] == second.split(b"/", 1)[-1]:
        name = _name(first, strip=True)
        return name, name
    return None, None


def _name(raw: bytes, *, strip: bool) -> str | None:
    """A name as git writes it: quoted like a C string where it must be, a/ or b/ before it."""
    quoted = QUOTED.match(raw)
    if quoted:
        raw = _unescaped(quoted[1])
    elif strip:
        raw = raw.split(b"\t", 1)[0]  # diff(1) appends a date
    name = raw.decode("utf-8", "surrogateescape")
    if name == "/dev/null":
        return None
    if strip:
        first, slash, rest = name.partition("/")
        # git apply removes one component, whatever it is; before "/" there is none.
        name = rest if slash and first else name
    return name


ESCAPES = dict(zip(b"ntrabfv", b"\n\t\r\a\b\f\v", strict=True))


def _unescaped(raw: bytes) -> bytes:
    def one(found: re.Match[bytes]) -> bytes:
        what = found[1]
        return bytes([int(what, 8) & 255 if what.isdigit() else ESCAPES.get(what[0], what[0])])

    return re.sub(rb"\\([0-7]{3}|.)", one, raw)


# One diff applied to one tree: whether it fits, how, or exactly why not.

NAME = re.compile(rb"\w{3,}")
MOST_SHOWN = 20
"""Lines of one side of a conflict, and places of a hunk, that are shown."""
SPREAD = 8
"""Lines that may have come between the lines of one hunk."""
SECTION = 150
"""Lines below its heading in which a hunk is expected."""
ENOUGH = 0.5
"""The least weight of a place: one line that occurs twice in the file has it."""
LONG, DISTINCTIVE = 5, 3
"""The fewest telling lines of a block that nobody writes twice; and where more shows it."""


class PatchState(StrEnum):
    """The state of a patch on a tree, from the best to the worst."""

    APPLIES = "applies"
    UPSTREAM = "upstream"
    ABSENT = "absent"
    DOUBTFUL = "doubtful"
    CONFLICTS = "conflicts"
    BROKEN = "broken"
    UNTRIED = "untried"

    @property
    def meaning(self) -> str:
        """The state in a sentence."""
        return MEANINGS[self]


MEANINGS = {
    PatchState.APPLIES: "applies exactly",
    PatchState.UPSTREAM: "upstream contains the change",
    PatchState.ABSENT: "the files that it changes do not exist",
    PatchState.DOUBTFUL: "it applies, but perhaps at a wrong place or a second time",
    PatchState.CONFLICTS: "the lines that it expects have changed",
    PatchState.BROKEN: "not a patch, without effect, or its commits are gone",
    PatchState.UNTRIED: "its script needs Docker with the recipe's base",
}


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


def attempt(scratch: Scratch, tree: str, files: Sequence[FileDiff]) -> Attempt:
    """Apply a diff to a tree, exactly: every line of context must match.

    A hunk may have moved, if its lines occur only once.
    """
    now, offsets, notes = tree, list[tuple[str, int, int]](), list[str]()
    for step in steps(files):
        done = _step(scratch, now, step)
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


def _step(scratch: Scratch, tree: str, files: Sequence[FileDiff]) -> Attempt:
    # Read before git does: a damaged mirror is repaired then.
    before = [_lines(scratch, tree, file.old) or [] for file in files]
    try:
        done = scratch.apply(tree, joined(files))
    except NotApplicableError as error:
        conflicts = [found for file in files for found in _conflicts(scratch, tree, file)]
        conflicts = conflicts or [Conflict(files[0].path, 0, reasons(str(error)))]
        return Attempt(PatchState.CONFLICTS, tree, conflicts=tuple(conflicts))
    if wrong := [*_wrong(scratch, tree, files, before, done), *_leaving(scratch, tree, done.tree)]:
        return Attempt(PatchState.CONFLICTS, tree, conflicts=tuple(wrong))
    if doubts := tuple(_doubts(scratch, tree, files, before, done)):
        return Attempt(PatchState.DOUBTFUL, tree, conflicts=doubts)
    moved = tuple((files[at].path, hunk, by) for (at, hunk), by in done.offsets.items())
    notes = tuple(_other_results(scratch, tree, files, done))
    return Attempt(PatchState.APPLIES, done.tree, moved, notes=notes)


def _lines(scratch: Scratch, tree: str, path: str | None) -> list[bytes] | None:
    content = scratch.file(tree, path) if path else None
    return None if content is None else lines_of(content)


def places(wanted: Sequence[bytes], lines: Sequence[bytes]) -> list[int]:
    """The indices (from 0) at which ``lines`` contain ``wanted``, line by line."""
    count = len(wanted)
    return [at for at in range(len(lines) - count + 1) if lines[at : at + count] == wanted]


def trivial(line: bytes) -> bool:
    """Whether a line identifies no place: it is blank, or a bracket."""
    return NAME.search(line) is None


def bare(line: bytes) -> bytes:
    """A line without white space."""
    return b"".join(line.split())


def _other_results(
    scratch: Scratch, tree: str, files: Sequence[FileDiff], done: Application
) -> Iterator[str]:
    for file in files:
        named = INDEX.search(file.text) if file.by_git else None
        if named is None:
            continue
        entries = (
            path and scratch.entry(each, path)
            for each, path in ((tree, file.old), (done.tree, file.new))
        )
        old, new = (entry.object if entry else "0" * 40 for entry in entries)
        before, after = (name.decode() for name in named.groups())
        if old.startswith(before) and not new.startswith(after):
            yield (
                f"{file.path} becomes another file than the diff names ({after}): its lines were "
                "edited, or changed on the way"
            )


def _wrong(
    scratch: Scratch,
    tree: str,
    files: Sequence[FileDiff],
    before: Sequence[list[bytes]],
    done: Application,
) -> Iterator[Conflict]:
    """The files that git did not change exactly as a diff says.

    git compares bytes, so a last line without line feed matches the start of a longer line.
    """
    if [(each.path, each.counts) for each in (*done.files,)] != [(f.path, f.counts) for f in files]:
        why = "git reads the diff otherwise without the files left out"
        yield Conflict(files[0].path, 0, why)
        return
    for index, (file, old) in enumerate(zip(files, before, strict=True)):
        new = _lines(scratch, done.tree, file.new) or []
        for number, hunk in reversed([*enumerate(file.hunks, 1)]):
            at = max(hunk.new_start - 1, 0) + done.offsets.get((index, number), 0)
            if new[at : at + len(hunk.after)] != hunk.after:
                break
            new[at : at + len(hunk.after)] = hunk.before
        if not file.binary and not (new == old and _has_mode(scratch, done.tree, file)):
            why = "git can apply it, but not to exactly these lines"
            yield from _conflicts(scratch, tree, file) or [Conflict(file.path, 0, why)]


def reasons(reason: str) -> str:
    """The reasons in the messages of git, without the lines that it looked for."""
    prefix = "error: "
    lines = [line.removeprefix(prefix) for line in reason.splitlines() if line.startswith(prefix)]
    return "; ".join(line for line in lines if not line.startswith("while searching")) or reason


def _has_mode(scratch: Scratch, tree: str, file: FileDiff) -> bool:
    entry = scratch.entry(tree, file.new) if file.new else None
    return not file.new_mode or (entry is not None and entry.mode == file.new_mode)


def _leaving(scratch: Scratch, tree: str, new: str) -> Iterator[Conflict]:
    """The symbolic links that would lead out of the new tree, and did not before."""
    if all(after.mode != SYMLINK for _, after in scratch.changes(tree, new)):
        return
    before = archives.leaving(scratch.symlinks(tree))
    for path, target in archives.leaving(scratch.symlinks(new)).items():
        if before.get(path) != target:
            yield Conflict(path, 0, f"would be a link to {target}, outside the tree")


def _doubts(
    scratch: Scratch,
    tree: str,
    files: Sequence[FileDiff],
    before: Sequence[list[bytes]],
    done: Application,
) -> Iterator[Conflict]:
    """Why git may have applied a diff at a wrong place, or a second time.

    The lines of a hunk that moved occur more than once.  Or git, if it has the file that the diff
    was made for, merges the change otherwise: the lines that it was made for have changed, and git
    has found a copy; or the tree has the change already.  Without that file the lines tell.
    """
    for index, number in done.offsets:
        file = files[index]
        hunk = file.hunks[number - 1]
        stands = [str(place + 1) for place in places(hunk.before, before[index])]
        if len(stands) > 1:
            where = f"lines {', '.join(stands[:MOST_SHOWN])}"
            why = f"moved, and its lines occur in {len(stands)} places: {where}"
            yield Conflict(file.path, number, why)
    moved = {index for index, _ in done.offsets}
    for index, (file, lines) in enumerate(zip(files, before, strict=True)):
        if file.old is None or file.binary:
            continue
        made_for = None
        if file.preimage and not scratch.missing([file.preimage]):
            made_for = lines_of(scratch.read(file.preimage))
            if not _is_merged(scratch, tree, file, done.tree):
                why = "a merge from the file that it was made for has another result"
                yield Conflict(file.path, 0, why)
                continue
        enough = DISTINCTIVE if made_for or index in moved else LONG
        yield from _repeated(file, lines, made_for, enough)


def _is_merged(scratch: Scratch, tree: str, file: FileDiff, done: str) -> bool:
    try:
        merged = scratch.apply(tree, file.text, "--3way").tree
    except NotApplicableError:
        return False
    return not file.new or scratch.entry(merged, file.new) == scratch.entry(done, file.new)


def _repeated(
    file: FileDiff, lines: Sequence[bytes], made_for: Sequence[bytes] | None, enough: int
) -> Iterator[Conflict]:
    """The long blocks of a diff that stand in the file already, since it was made.

    Where the file that it was made for is unknown, several copies are a habit of the file.
    """
    there, old = [bare(line) for line in lines], [bare(line) for line in made_for or ()]
    for number, hunk in enumerate(file.hunks, 1):
        for sign, group in groupby(hunk.lines, lambda line: line[:1]):
            block = [bare(line[1:]) for line in group]
            if sign != b"+" or len({each for each in block if not trivial(each)}) < enough:
                continue
            found = places(block, there)
            if len(found) > len(places(block, old)) if old else len(found) == 1:
                why = f"the lines that it adds are already at line {found[0] + 1}"
                yield Conflict(file.path, number, why)


def _is_there(scratch: Scratch, tree: str, files: Sequence[FileDiff]) -> bool:
    """Whether a tree contains the change: its reverse applies, line by line."""
    for step in reversed(steps(files)):
        for file in step:
            lines = _lines(scratch, tree, file.new) or []
            there = all(places(hunk.after, lines) for hunk in file.hunks)
            if not (there and _has_mode(scratch, tree, file)):
                return False
        try:
            tree = scratch.apply(tree, joined(step), "--reverse").tree
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


# Hunks that do not fit a file: where they belong, and which lines differ.


def _conflicts(scratch: Scratch, tree: str, file: FileDiff) -> list[Conflict]:
    lines = _lines(scratch, tree, file.old)
    if file.old is None:
        there = _lines(scratch, tree, file.new) is not None
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
        if fits := places(hunk.before, lines):
            why = _unplaced(hunk, fits, len(lines))
            found += [Conflict(file.path, number, why)] if why else []
        else:
            found.append(_mismatch(file.path, number, hunk, lines))
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


def _likeliest(hunk: Hunk, lines: Sequence[bytes]) -> range | None:
    """The most likely place of a hunk in a file, by its rare lines and its heading; None: no clue.

    git-diff(1): "the hunk header mentions the name of the function to which the hunk applies".
    """
    there = defaultdict[bytes, list[int]](list)
    for at, line in enumerate(lines):
        there[line.strip()].append(at)
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
    best = max(votes, key=lambda at: (votes[at], -abs(at - hunk.start + 1)), default=None)
    if best is None or votes[best] < ENOUGH:
        return None
    near = [at for at in votes if abs(at - best) <= SPREAD and votes[at] >= ENOUGH]
    return range(max(min(near), 0), max(near) + len(hunk.before))


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "replace")


def _mismatch(path: str, number: int, hunk: Hunk, lines: list[bytes]) -> Conflict:
    sides = ([line.rstrip(b"\r\n") for line in side] for side in (hunk.before, lines))
    if alike := places(*sides):
        actual = lines[alike[0] : alike[0] + len(hunk.before)]
        line = next((_text(each) for each in hunk.before if each not in actual), "")
        why = "the line ends differ (CRLF or LF)"
        if [each.rstrip(b"\n") for each in hunk.before] == [each.rstrip(b"\n") for each in actual]:
            last = hunk.before[-1].endswith(b"\n")
            why = f"the file {'has no line feed at its end' if last else 'goes on after this line'}"
        return Conflict(path, number, why, (line,))
    where = _likeliest(hunk, lines)
    if where is None:
        why = f"the file has no similar lines (it was at line {hunk.start})"
        return Conflict(path, number, why, tuple(map(_text, hunk.of(b"-") or hunk.before)))
    actual = lines[where.start : where.stop]
    expected, found = list[str](), list[str]()
    matcher = SequenceMatcher(None, hunk.before, actual, autojunk=False)
    for what, a, b, c, d in matcher.get_opcodes():
        if what != "equal":
            expected += map(_text, hunk.before[a:b])
            found += map(_text, actual[c:d])
    begin = f"from line {where.start + 1}"
    if sorted(expected) == sorted(found):
        return Conflict(path, number, f"its lines are in another order, {begin}")
    return Conflict(path, number, f"the lines differ, {begin}", tuple(expected), tuple(found))
