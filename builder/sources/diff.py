"""Diffs as data: which files they touch, hunk by hunk; and the diffs of pull requests and ranges.

The parser does no I/O, and nothing is applied here.

The format is described by git-diff(1), "Generating patch text with -p", and the unified one of
diff(1) without git's headers.  git applies diffs; this module decides which ones it gets.  git
skips what it does not know (apply.c, find_header): here such a line is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import groupby, pairwise

from builder.core.errors import FetchError, PatchError
from builder.plan.inputs import PlannedPatch
from builder.recipes.patches import Pick, PullPatch
from builder.sources.git import UpstreamLacksError
from builder.sources.mirrors import Repositories
from builder.sources.repository import EMPTY_TREE, GITLINK

HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: ([^\r\n]*))?")
INDEX = re.compile(rb"^index ([0-9a-f]{7,40})\.\.([0-9a-f]{7,40})", re.MULTILINE)
QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
MODE = re.compile(rb"(?:old mode|new mode|index \S+) \d{6}\s*$")
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
MAIL = re.compile(rb"^From \S+ \w{3} \w{3} [^\n]*(?:\n(?=[!-9;-~]+:)|\n?\Z)", re.MULTILINE)
"""The line before a mail of a mailbox (git-mailsplit(1)), where the headers of one follow."""
MAIL_HEADERS = re.compile(rb"(?=[^\n]+\n)(?:[!-9;-~]+:[^\n]*\n|[ \t]+[^\n]*\n)+\r?\n")
COVER = re.compile(rb"^Subject:[^\n]* 0+/\d+\]", re.MULTILINE)
NULL = "/dev/null"


class NotADiffError(ValueError):
    """A text that is no diff, or a diff that git must not apply; the message says why."""


class NoDiffError(NotADiffError):
    """A text without any diff."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk: it starts at line ``start`` (from 1) of the old file, ``new_start`` of the new one.

    Its lines begin with "-" (removed), "+" (added) or " " (context).  ``heading`` is the line above
    it that git takes for the start of its section, cut off at 80 bytes; empty if the diff has none.
    """

    lines: tuple[bytes, ...]
    start: int
    heading: bytes = b""
    new_start: int = 0

    def _signed(self, signs: bytes) -> list[bytes]:
        return [line[1:] for line in self.lines if line[:1] in signs]

    @property
    def removed(self) -> list[bytes]:
        """The removed lines."""
        return self._signed(b"-")

    @property
    def added(self) -> list[bytes]:
        """The added lines."""
        return self._signed(b"+")

    @property
    def before(self) -> list[bytes]:
        """The lines that the hunk expects, context included."""
        return self._signed(b" -")

    @property
    def after(self) -> list[bytes]:
        """The lines after it is applied, context included."""
        return self._signed(b" +")


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
    def lines(self) -> list[bytes]:
        """The lines of all hunks."""
        return [line for hunk in self.hunks for line in hunk.lines]

    @property
    def counts(self) -> tuple[int, int] | None:
        """The numbers of added and removed lines; None for a binary file."""
        signs = [line[:1] for line in self.lines]
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


def mails(text: bytes) -> list[tuple[int, bytes, bool]]:
    """The parts of a text: the line before each, its text, and whether it is a mail.

    A text that is no mailbox has one part.
    """
    starts = [found.start() for found in MAIL.finditer(text)]
    parts = []
    for start, end in pairwise([*sorted({0, *starts}), len(text)]):
        part = text[start:end]
        mailed = start in starts or MAIL_HEADERS.match(part) is not None
        if mailed and part.partition(b"\n")[0].endswith(b"\r"):
            part = part.replace(b"\r\n", b"\n")  # the mail's own line ends (RFC 5322)
        if part.strip():
            parts.append((text.count(b"\n", 0, start), part, mailed))
    return parts


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
    """The diff of these files; an empty line ends the header of one without hunks."""
    return b"\n".join(file.text for file in files)


def _refuse(file: FileDiff) -> None:
    if not file.paths:
        raise NotADiffError("a part of it has no file name")
    for path in file.paths:
        parts = path.split("/")
        if path.startswith("/") or ".." in parts or "" in parts or ".git" in map(str.lower, parts):
            raise NotADiffError(f"the path {path!r} leads out of the tree")
    if GITLINK in file.modes or all(map(SUBPROJECT.match, file.lines or [b""])):
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
    if not file.binary and not file.hunks:
        _refuse_without_lines(file)


def _refuse_without_prefix(file: FileDiff) -> None:
    """Raise ``NotADiffError`` if git would remove a directory from the names of a file.

    It removes their first component, a/ and b/ as a rule.  ``diff.noprefix`` writes none, nor does
    ``diff -u src/x.orig src/x``.
    """
    prefixes = [prefix for prefix in map(_prefix, _raw_names(file.text)) if prefix is not None]
    alike = len(prefixes) > 1 and len({*prefixes}) == 1 and prefixes[0] not in {"a", "b"}
    # Without git's header a new file has one name, as the other one is /dev/null.
    alone = not file.by_git and len(prefixes) == 1 and None in {file.old, file.new}
    alone = alone and len(prefixes[0]) > 1
    if alike or alone:
        raise NotADiffError(
            f"its names have no a/ and b/: git would remove {prefixes[0]}/ from {file.path} "
            "(`git diff --src-prefix=a/ --dst-prefix=b/` writes them)"
        )


def _raw_names(text: bytes) -> list[bytes]:
    """The names before and after, as the first header line with both of them has them."""
    first, *rest = text.split(b"\n", 3)
    if not first.startswith(b"diff --git "):
        return [first[4:], rest[0][4:]]
    return QUOTED.findall(first) if b'"' in first else first.rstrip().split(b" ")[2:]


def _prefix(raw: bytes) -> str | None:
    """The first component of a name, which git removes; None if it has one only."""
    first, slash, _ = raw.lstrip(b'"').split(b"\t", 1)[0].partition(b"/")
    return first.decode("utf-8", "replace") if slash and first and b" " not in first else None


def _refuse_without_lines(file: FileDiff) -> None:
    index = INDEX.search(file.text)
    blobs = {each[:7] for each in index.groups()} if index else set()
    if b"\n+++ " in file.text or (len(blobs) > 1 and blobs != {NO_BLOB, EMPTY_BLOB}):
        raise NotADiffError(f"the changed lines of {file.path} are missing")
    if file.old == file.new and not file.new_mode:
        raise NotADiffError(f"it does not change {file.path}")


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
        at = _after_binary(lines, at + 1)
    while at < len(lines) and (hunk := HUNK.match(lines[at])):
        at, parsed = _hunk(lines, at, hunk)
        hunks.append(parsed)
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


def _after_binary(lines: list[bytes], at: int) -> int:
    """The index after the parts of a binary change; an empty line ends each of them."""
    while at < len(lines) and BINARY_PART.match(lines[at]):
        at = next((n + 1 for n in range(at, len(lines)) if not lines[n].strip()), len(lines))
    return at


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
    if line.startswith((b"rename from ", b"copy from ")):
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
    if b'"' in rest:
        old, *new = (_name(found[0], strip=True) for found in QUOTED.finditer(rest + b' ""'))
        return (old, old) if new[:1] == [old] else (None, None)
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


# Diffs of pull requests and of ranges of commits, computed from their commits.


@dataclass(frozen=True, slots=True)
class Piece:
    """One diff of a patch: a range of commits has several, any other patch has one.

    The diff leads from the commit ``base`` to ``head`` in the repository at ``url``; only pull
    requests and commits have them.
    """

    name: str
    text: bytes
    url: str = ""
    base: str = ""
    head: str = ""
    printed: tuple[str, ...] = ()
    """The last lines that a script printed."""


def _require_ancestor(
    repositories: Repositories, name: str, url: str, base: str, head: str
) -> None:
    repositories.walk(url, head)
    scratch = repositories.scratch
    if not scratch.missing([base]) and scratch.is_ancestor(base, head):
        return
    raise PatchError(
        f"{name} is not the diff of a branch",
        f"{base} is not an ancestor of {head} in {url}",
        "`builder patch add` finds the commit at which the branch forked",
    )


def between(repositories: Repositories, planned: PlannedPatch, base: str, head: str) -> bytes:
    """The diff of a pull request, computed from its two commits."""
    _require_ancestor(repositories, planned.name, planned.url, base, head)
    return diff_of(repositories, planned.url, base, head, planned.name)


def diff_of(repositories: Repositories, url: str, old: str, new: str, name: str) -> bytes:
    """The diff between two walked commits.

    Raises ``PatchError`` if it is empty.
    """
    repositories.contents(url, repositories.scratch.blobs_of(new, old))
    text = repositories.scratch.diff(old, new)
    if not text:
        raise PatchError(f"{name} changes nothing", f"{old} and {new} have the same tree")
    return text


def picked(repositories: Repositories, planned: PlannedPatch, pick: Pick) -> Iterator[Piece]:
    """A diff for each commit of a range, oldest first; a merge has none."""
    span = f"{pick.after}..{pick.to}"
    _require_ancestor(repositories, planned.name, planned.url, pick.after, pick.to)
    listing = repositories.scratch.text("log", "--reverse", "--format=%H %P%x09%s", span)
    if not listing:
        raise PatchError(
            f"{planned.name} changes nothing", f"there is no commit after {pick.after}"
        )
    lines = listing.splitlines()
    strange = sorted(set(pick.without) - {line[:40] for line in lines})
    if strange:
        raise PatchError(
            f"{planned.name} leaves out commits that it does not contain",
            f"not among the commits of {span}: {', '.join(strange)}",
            "correct `without`",
        )
    if len(pick.without) == len(lines):
        raise PatchError(
            f"nothing is left of {planned.name}",
            "all of its commits are left out",
            "drop the patch, or narrow `without`",
        )
    for line in lines:
        names, _, subject = line.partition("\t")
        commit, *parents = names.split(" ")
        if commit in pick.without:
            continue
        if len(parents) > 1:
            raise PatchError(
                f"{planned.name} contains the merge {commit[:12]} ({subject})",
                "a merge has no diff of its own",
                "pick the ranges before and after it",
            )
        name = f"commit {commit[:12]} ({subject})"
        base = parents[0] if parents else EMPTY_TREE
        text = diff_of(repositories, planned.url, base, commit, name)
        yield Piece(name, text, planned.url, base, commit)


def lost(
    repositories: Repositories, planned: PlannedPatch, commit: str, error: UpstreamLacksError
) -> UpstreamLacksError:
    """The error of a patch whose ``commit`` is gone: the pull request's present head, if any."""
    keep = f"push {commit} from a clone that has it to a repository of yours: git = URL"
    what, patch = f"{planned.name}: {planned.url} no longer has {commit[:12]}", planned.patch
    if not isinstance(patch, PullPatch):
        return UpstreamLacksError(what, error.why, keep)
    try:
        head = repositories.mirror(planned.url).advertised().pull(patch.pull)
    except FetchError:
        head = None  # the repository is gone, too
    if head is None:
        return UpstreamLacksError(f"{what}, and no pull request {patch.pull}", error.why, keep)
    where = f" --repository {patch.git}" if patch.git else ""
    return UpstreamLacksError(
        f"{what}; the head of pull request {patch.pull} is {head[:12]} now",
        error.why,
        f"`builder patch add {planned.recipe} --pull {patch.pull}{where}` pins that; or {keep}",
    )
