"""Diffs as data: which files they touch, hunk by hunk.  No I/O, nothing is applied here.

The format is described by git-diff(1), "Generating patch text with -p", and the unified one of
diff(1) without git's headers.  git applies diffs; this module decides which ones it gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: ([^\r\n]*))?")
INDEX = re.compile(rb"index ([0-9a-f]{7,40})\.\.([0-9a-f]{7,40})")
QUOTED = re.compile(rb'"((?:[^"\\\\]|\\\\.)*)"')
MODE = re.compile(rb"(?:old mode|new mode|index \S+) \d{6}\s*$")
NULL = "/dev/null"
LINK, GITLINK = "120000", "160000"


class NotADiffError(ValueError):
    """A text that is no diff, or a diff that git must not apply; the message says why."""


@dataclass(frozen=True, slots=True)
class ChangedLines:
    """Lines of a diff, each after "-" (removed), "+" (added) or " " (context)."""

    lines: tuple[bytes, ...]

    @property
    def removed(self) -> list[bytes]:
        """The removed lines."""
        return [line[1:] for line in self.lines if line[:1] == b"-"]

    @property
    def added(self) -> list[bytes]:
        """The added lines."""
        return [line[1:] for line in self.lines if line[:1] == b"+"]


@dataclass(frozen=True, slots=True)
class Hunk(ChangedLines):
    """One hunk, which starts at line ``start`` (from 1) of the old file.

    ``heading`` is the line above it that git takes for the start of its section, cut off at 80
    bytes; empty if the diff has none.
    """

    start: int
    heading: bytes = b""

    @property
    def before(self) -> list[bytes]:
        """The lines that the hunk expects, context included."""
        return [line[1:] for line in self.lines if line[:1] in {b" ", b"-"}]

    @property
    def after(self) -> list[bytes]:
        """The lines after it is applied, context included."""
        return [line[1:] for line in self.lines if line[:1] in {b" ", b"+"}]


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The change of one file; ``old`` is None for a new file, ``new`` for a deleted file.

    ``preimage`` is the blob that it was made for, perhaps abbreviated; empty if the diff does not
    name it.
    """

    old: str | None
    new: str | None
    modes: tuple[str, ...]
    binary: bool
    hunks: tuple[Hunk, ...]
    text: bytes = field(repr=False)
    preimage: str = ""

    @property
    def path(self) -> str:
        """The new name, or the old one of a deleted file."""
        return self.new or self.old or ""

    @property
    def paths(self) -> set[str]:
        """Both names."""
        return {path for path in (self.old, self.new) if path}


def parse(text: bytes) -> list[FileDiff]:
    """The files of a diff, in order; text before the first one is ignored.

    Raises ``NotADiffError`` for an empty or cut-off diff, a path that is absolute or leaves the
    tree, a binary file without its contents, and a change of a submodule.
    """
    found = list(_files(lines_of(text)))
    if not found:
        raise NotADiffError("it contains no diff")
    for file in found:
        _refuse(file)
    return found


def lines_of(text: bytes) -> list[bytes]:
    """The lines of a text with their line ends; only a line feed ends one, as in git."""
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


def matches(path: str, globs: Sequence[str]) -> bool:
    """Whether a path matches one of the globs (fnmatch(3), where * matches slashes too)."""
    return any(fnmatchcase(path, glob) for glob in globs)


def without(files: Sequence[FileDiff], globs: Sequence[str]) -> tuple[list[FileDiff], list[str]]:
    """The files that match no glob, and the paths of the others."""
    kept, left_out = [], []
    for file in files:
        if any(matches(path, globs) for path in file.paths):
            left_out.append(file.path)
        else:
            kept.append(file)
    return kept, left_out


def joined(files: Sequence[FileDiff]) -> bytes:
    """The diff of these files."""
    return b"".join(file.text for file in files)


def _refuse(file: FileDiff) -> None:
    if not file.paths:
        raise NotADiffError("a part of it has no file name")
    for path in file.paths:
        parts = path.split("/")
        if path.startswith("/") or ".." in parts or "" in parts or ".git" in map(str.lower, parts):
            raise NotADiffError(f"the path {path!r} leads out of the tree")
    if GITLINK in file.modes:
        raise NotADiffError(f"it changes the submodule {file.path}: pin another commit instead")
    if file.binary and b"GIT binary patch" not in file.text:
        raise NotADiffError(
            f"the binary file {file.path} differs, and the diff lacks its contents "
            "(`git diff --binary` includes them)"
        )


def _files(lines: list[bytes]) -> Iterator[FileDiff]:
    at = 0
    while at < len(lines):
        plain = (
            lines[at].startswith(b"--- ")
            and lines[at + 1 : at + 2]
            and (lines[at + 1].startswith(b"+++ "))
        )
        if lines[at].startswith(b"diff --git ") or plain:
            end, file = _one_file(lines, at)
            yield file
            at = end
        else:
            at += 1


def _one_file(lines: list[bytes], start: int) -> tuple[int, FileDiff]:
    names: dict[str, str | None] = {}
    modes: list[str] = []
    hunks: list[Hunk] = []
    binary = False
    preimage = ""
    at = start
    if lines[at].startswith(b"diff --git "):
        names["old"], names["new"] = _header_names(lines[at])
        at += 1
    while at < len(lines):
        line = lines[at]
        if line.startswith(b"diff --git ") or (hunks and line.startswith(b"--- ")):
            break
        hunk = HUNK.match(line)
        if hunk:
            at, parsed = _hunk(lines, at, hunk)
            hunks.append(parsed)
            continue
        if hunks and not line.startswith(b"\\"):
            break  # a message, or the signature of a mailed patch
        index = INDEX.match(line)
        preimage = index[1].decode() if index else preimage
        binary = binary or line.startswith((b"Binary files ", b"GIT binary patch"))
        _read_header(line, names, modes)
        at += 1
    file = FileDiff(
        names.get("old"),
        names.get("new"),
        tuple(modes),
        binary,
        tuple(hunks),
        b"".join(lines[start:at]),
        preimage,
    )
    return at, file


def _hunk(lines: list[bytes], at: int, header: re.Match[bytes]) -> tuple[int, Hunk]:
    old, new = (int(count) if count is not None else 1 for count in (header[2], header[4]))
    body: list[bytes] = []
    at += 1
    while old > 0 or new > 0:
        line = lines[at] if at < len(lines) else b""
        kind = line[:1]
        if line in {b"\n", b"\r\n"}:  # an empty line of context, its blank lost on the way
            line, kind = b" " + line, b" "
        if kind not in {b" ", b"+", b"-", b"\\"}:
            raise NotADiffError(f"a hunk ends early: {header[0].decode()}")
        if kind == b"\\":
            _strip_line_end(body)
        else:
            old -= kind != b"+"
            new -= kind != b"-"
            body.append(line)
        at += 1
    if at < len(lines) and lines[at].startswith(b"\\"):
        _strip_line_end(body)
        at += 1
    return at, Hunk(tuple(body), int(header[1]), header[5] or b"")


def _strip_line_end(body: list[bytes]) -> None:
    """Remove the line feed of the last line: the diff says that the file has none."""
    if not body:
        raise NotADiffError("a hunk begins with a remark on the line before it")
    body[-1] = body[-1].removesuffix(b"\n")


def _read_header(line: bytes, names: dict[str, str | None], modes: list[str]) -> None:
    """Record the names and modes in a line of a file's header."""
    word, _, rest = line.rstrip(b"\r\n").partition(b" ")
    if word in {b"---", b"+++"}:
        names["old" if word == b"---" else "new"] = _name(rest, strip=True)
    elif line.startswith((b"rename from ", b"copy from ")):
        names["old"] = _name(line.split(b" from ", 1)[1].rstrip(b"\r\n"), strip=False)
    elif line.startswith((b"rename to ", b"copy to ")):
        names["new"] = _name(line.split(b" to ", 1)[1].rstrip(b"\r\n"), strip=False)
    elif line.startswith(b"new file mode "):
        names["old"] = None
        modes.append(line.split()[-1].decode())
    elif line.startswith(b"deleted file mode "):
        names["new"] = None
        modes.append(line.split()[-1].decode())
    elif MODE.match(line):
        modes.append(line.split()[-1].decode())


def _header_names(line: bytes) -> tuple[str | None, str | None]:
    """Both names of ``diff --git a/X b/X``, which are equal where no other line names them."""
    rest = line.rstrip(b"\r\n").removeprefix(b"diff --git ")
    quoted = QUOTED.match(rest)
    if quoted:
        name = _name(quoted[0], strip=True)
        return name, name
    half = (len(rest) - 1) // 2
    first = rest[:half]
    if (
        rest[half : half + 1] == b" "
        and first.split(b"/", 1)[-1] == rest[half + 1 :].split(b"/", 1)[-1]
    ):
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
    if name == NULL:
        return None
    if strip:
        first, slash, rest = name.partition("/")
        # git apply removes one component, whatever it is; before "/" there is none.
        name = rest if slash and first else name
    return name


ESCAPES = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}


def _unescaped(raw: bytes) -> bytes:
    def one(found: re.Match[bytes]) -> bytes:
        what = found[1]
        return bytes([int(what, 8) & 255]) if what.isdigit() else ESCAPES.get(what, what)

    return re.sub(rb"\\([0-7]{3}|.)", one, raw)
