"""The patches of a recipe, applied in order to a tree."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from uuid import uuid4

from builder.core import archives
from builder.core.errors import PatchError, UntriedError
from builder.core.log import Log
from builder.docker import containers
from builder.docker.engine import Finished
from builder.engines.family import PackagePaths
from builder.plan.inputs import PlannedPatch
from builder.recipes.patches import (
    Add,
    AddPatch,
    Distribution,
    FilePatch,
    PickPatch,
    PullPatch,
    Script,
    ScriptPatch,
)
from builder.sources import diff
from builder.sources.diff import (
    FileDiff,
    NoDiffError,
    NotADiffError,
    Piece,
    between,
    lost,
    matches,
    picked,
    without,
)
from builder.sources.git import UpstreamLacksError
from builder.sources.history import (
    Conflict,
    conflicts_of,
    doubles,
    doubtful_offsets,
    file_lines,
    places,
)
from builder.sources.mirrors import Repositories
from builder.sources.patch_state import PatchState
from builder.sources.repository import (
    EMPTY_TREE,
    SYMLINK,
    Application,
    CountedFile,
    Item,
    NotApplicableError,
    NoTreeError,
    Scratch,
)

# One diff applied to one tree: whether it fits, how, or exactly why not.


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


def read_diff(scratch: Scratch, text: bytes) -> list[FileDiff]:
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
    doubts = doubtful_offsets(scratch, tree, files, before, done, origin)
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
    before = archives.leaving(scratch.symlinks(tree))
    return [
        Conflict(path, 0, f"would be a link to {target}, outside the tree")
        for path, target in archives.leaving(scratch.symlinks(done.tree)).items()
        if before.get(path) != target
    ]


# Patches of an installed Python package: its part of a diff, and the metadata of added files.
#
# Added files become an installed project by a ``.dist-info`` directory (Python packaging,
# "Recording installed projects", "Core metadata" and "Entry points").


def package_part(
    paths: PackagePaths, name: str, files: Sequence[FileDiff]
) -> tuple[list[FileDiff], list[str]]:
    """The files of a diff that the package contains, and the paths of the others."""
    kept = [file for file in files if all(map(paths.contains, file.paths))]
    others = [file for file in files if file not in kept]
    left_out = [file.path for file in others if _elsewhere(paths, file)]
    unknown = [file.path for file in others if not _elsewhere(paths, file)]
    if unknown:
        why = f"it is unknown whether an installed {paths.package} contains it"
        if any(matches(path, paths.needs) for path in unknown):
            why = f"they declare requirements of {paths.package}, and an overlay adds no packages"
        raise PatchError(
            f"{name} changes {', '.join(unknown)}",
            why,
            "set leave_out in the recipe, if the rest works without it",
        )
    return kept, left_out


def refuse_compiled(paths: PackagePaths, name: str, files: Sequence[FileDiff]) -> None:
    """Raise ``PatchError`` for a diff that changes files which must be compiled."""
    _, found = without(files, paths.compiled)
    if found:
        raise PatchError(
            f"{name} cannot overlay an installed package",
            f"it changes compiled files: {', '.join(found)}",
            f"build {paths.package} from source (a commit, the CUDA toolkit, and hours of "
            "compiling), or use a release that has it; builder never applies a part of a patch",
        )


def _elsewhere(paths: PackagePaths, file: FileDiff) -> bool:
    return all(matches(path, paths.elsewhere) for path in file.paths)


def dist_info(distribution: Distribution, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of the ``.dist-info`` directory of ``files``, by their path in site-packages."""
    name = distribution.name.replace("-", "_").replace(".", "_").lower()
    folder = f"{name}-{distribution.version}.dist-info"
    metadata = ("Metadata-Version: 2.1", f"Name: {distribution.name}")
    texts = {
        "METADATA": "".join(
            f"{line}\n" for line in (*metadata, f"Version: {distribution.version}")
        ),
        "INSTALLER": "builder\n",
        "entry_points.txt": "".join(_entry_points(distribution)),
    }
    made = {f"{folder}/{path}": text.encode() for path, text in texts.items() if text}
    lines = [_recorded(path, content) for path, content in {**files, **made}.items()]
    record = f"{folder}/RECORD"
    return {**made, record: "".join([*lines, f"{record},,\n"]).encode()}


def _entry_points(distribution: Distribution) -> Iterator[str]:
    for group, points in distribution.entry_points.items():
        yield f"[{group}]\n"
        yield from (f"{name} = {value}\n" for name, value in points.items())


def _recorded(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(content)}\n"


# The tools that patches are made and tried with, and the errors of patches that half fit.


class AbsentError(PatchError):
    """The files that a patch changes are missing."""


class HalfDoneError(PatchError):
    """A script changed files, and failed or did not print all that it must."""


@dataclass(frozen=True, slots=True)
class PatchContext:
    """The tools that patches are made and tried with.

    ``image`` is the engine's image, in which scripts run; None if there is none.
    """

    repositories: Repositories
    work: Path
    image: str | None
    log: Log

    @property
    def scratch(self) -> Scratch:
        """The repository in which trees are made."""
        return self.repositories.scratch


# Patches that are scripts: run on a copy of the tree in a container, the changes are the diff.

MOST_PRINTED = 12  # lines of a script that are shown
MOST_NAMES = 12  # of files, in a message
SCRIPT_LIMITS = ("--memory=2g", "--ulimit=fsize=268435456", "--env=HOME=/tmp")


def scripted(context: PatchContext, planned: PlannedPatch, script: Script, tree: str) -> Piece:
    """Run a script on a copy of the tree, in a container; its changes are the diff."""
    if is_absent(context.scratch, tree, script.edits):
        raise AbsentError(
            f"{planned.name} finds no file to edit",
            f"missing: {', '.join(script.edits)}",
            'drop the patch, or set expect = "absent" if the files are known to be missing',
        )
    program = _program(context.repositories, planned, script)
    if context.image is None:
        raise UntriedError(
            f"{planned.name} runs in a container of the base, which is not built yet",
            hint="`builder build` builds the base first",
        )
    folder = context.work / f"script-{uuid4().hex}"
    folder.mkdir()
    try:
        copy = folder / "tree"
        context.scratch.export(tree, copy)
        file = folder / Path(script.path).name
        file.write_bytes(program)
        file.chmod(0o755)
        done = _run_script(context.image, planned.name, script, file, copy)
        changed = _tree_of_copy(context.scratch, planned.name, copy)
        text = context.scratch.diff(tree, changed)
        touched = context.scratch.changes(tree, changed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    printed = tuple(done.output.strip().splitlines()[-MOST_PRINTED:])
    _require_success(planned.name, script, done, touched, "\n".join(printed))
    if changed == EMPTY_TREE:
        raise PatchError(
            f"{planned.name} deletes every file",
            hint="drop it, or pin a revision that fits the source",
        )
    return Piece(planned.name, text, printed=printed)


def _require_success(
    name: str,
    script: Script,
    done: Finished,
    touched: Sequence[tuple[Item, Item]],
    printed: str,
) -> None:
    if done.status != 0:
        raise (HalfDoneError if touched else PatchError)(
            f"{name} failed with exit status {done.status}",
            printed,
            "it runs without network, and can write only to the tree",
        )
    _require_only_edits(name, script, touched)
    output = f"it printed:\n{printed}" if printed else "it printed nothing"
    if not touched:
        raise PatchError(
            f"{name} exited 0 and changed nothing",
            output,
            "drop it, or pin a revision that fits the source",
        )
    unprinted = ", ".join(repr(text) for text in script.contains if text not in done.output)
    unchanged = ", ".join(sorted(set(script.edits) - {new.path for _, new in touched}))
    if unprinted or unchanged:
        key = "contains" if unprinted else "edits"
        lacking = f"print {unprinted}" if unprinted else f"change {unchanged}"
        raise HalfDoneError(
            f"{name} exited 0 and did not {lacking}",
            output,
            f"it applied only in part: pin a revision that fits the source, or correct `{key}`",
        )


def _tree_of_copy(scratch: Scratch, name: str, folder: Path) -> str:
    try:
        return scratch.tree_from(folder)
    except NoTreeError as error:
        raise PatchError(
            f"{name} leaves files that git cannot store",
            str(error),
            "pin a revision that removes such files",
        ) from error


def _require_only_edits(name: str, script: Script, touched: Sequence[tuple[Item, Item]]) -> None:
    gone = {new.path for _, new in touched if not new.object.strip("0")}
    others = sorted({new.path for _, new in touched} if script.edits else gone)
    others = [path for path in others if path not in script.edits]
    if others:
        did = "deleted" if gone.issuperset(others) else "changed"
        shown = ", ".join(others[:MOST_NAMES])
        more = f" and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
        raise PatchError(
            f"{name} changes files that the recipe does not name",
            f"it {did} {shown}{more}",
            "name the files in `edits`, or pin a revision that does not change them",
        )


def _program(repositories: Repositories, planned: PlannedPatch, script: Script) -> bytes:
    tree = repositories.pin(planned.url, script.commit)
    program = repositories.scratch.file(tree, script.path)
    if program is None:
        raise PatchError(
            f"{planned.name} does not exist",
            f"{script.commit} of {planned.url} has no file {script.path}",
        )
    found = hashlib.sha256(program).hexdigest()
    if script.sha256 is not None and found != script.sha256:
        raise PatchError(
            f"{planned.name} differs from its pin",
            f"expected sha256 {script.sha256}, got {found}",
        )
    return program


def _run_script(image: str, name: str, script: Script, file: Path, tree: Path) -> Finished:
    where = f"/patch/{file.name}"
    python = script.path.endswith(".py")
    try:
        return containers.run(
            image,
            # -I -S hide the image's own packages: a script that imports one would edit that.
            [*(["-I", "-S", where] if python else []), *script.arguments],
            entrypoint="python3" if python else where,
            timeout=float(script.seconds),
            extra=(
                *SCRIPT_LIMITS,
                f"--user={os.getuid()}:{os.getgid()}",
                f"--volume={file}:{where}:ro",
                f"--volume={tree}:{script.at}",
                f"--workdir={script.at}",
            ),
            once=True,  # it writes to the tree
        )
    except containers.TimedOutError as error:
        raise PatchError(
            f"{name} did not end",
            f"it was stopped after {script.seconds} s",
            "it has no network to wait for; `seconds` in [script] gives it more time",
        ) from error


# All patches of a recipe.


def apply_all(context: PatchContext, tree: str, patches: tuple[PlannedPatch, ...]) -> str:
    """Apply patches in order; return the new tree.

    Raises ``PatchError`` for the first patch that does not fit or changes nothing, ``FetchError``
    if its commits cannot be fetched, ``UntriedError`` for a script without an image.
    """
    earlier: list[tuple[str, str]] = []
    for planned in patches:
        if planned.patch.expect == "absent":
            require_absence(context, planned, tree)
            context.log(f"{planned.name} is skipped: its files do not exist, as expected")
            continue
        before, tried = tree, []
        for piece in pieces(context, planned, tree):
            files = files_of(context.scratch, planned, piece, context.log)
            tried.append(files)
            result = attempt(context.scratch, tree, files)
            if result.state != PatchState.APPLIES:
                by = overlapping(context.scratch, earlier, before, tried)
                raise _refusal(planned, piece, files, result, by)
            for path, hunk, moved in result.offsets:
                context.log(f"{piece.name}: hunk {hunk} of {path} applies {moved:+} lines away")
            for note in result.notes:
                context.log(f"{piece.name}: {note}")
            tree = result.tree
        if tree == before:
            raise PatchError(
                f"{planned.name} changes nothing",
                hint="drop it, or correct it: see `builder patch check`",
            )
        context.log(f"{planned.name} is applied")
        earlier.append((planned.name, before))
    return tree


def overlapping(
    scratch: Scratch,
    earlier: Sequence[tuple[str, str]],
    tree: str,
    diffs: Sequence[list[FileDiff]],
) -> str:
    """The patch of the recipe without which diffs would apply to ``tree``; empty: there is none.

    ``earlier`` are the patches that made ``tree``, each with the tree that it was applied to.
    """

    def fits(tree: str) -> bool:
        for files in diffs:
            result = attempt(scratch, tree, files)
            if result.state != PatchState.APPLIES:
                return False
            tree = result.tree
        return True

    if fits(tree):
        return ""
    return next((name for name, before in reversed(earlier) if fits(before)), "")


def require_absence(context: PatchContext, planned: PlannedPatch, tree: str) -> None:
    """Raise ``PatchError`` if a tree has a file of a patch with ``expect = "absent"``."""
    paths: list[str] = []
    if isinstance(planned.patch, ScriptPatch):
        paths = planned.patch.script.edits
    else:
        for piece in pieces(context, planned, tree):
            paths += targets_of(files_of(context.scratch, planned, piece, context.log))
    if not paths:
        raise PatchError(
            f"{planned.name} only adds files, so none of its files can be absent",
            hint='remove expect = "absent", or drop the patch',
        )
    if not is_absent(context.scratch, tree, paths):
        raise PatchError(
            f'{planned.name} has expect = "absent", but files that it changes exist',
            ", ".join(item.path for item in context.scratch.items(tree, *paths)),
            'remove expect = "absent", or drop the patch: see `builder patch check`',
        )


def files_of(scratch: Scratch, planned: PlannedPatch, piece: Piece, log: Log) -> list[FileDiff]:
    """The files of a diff, without the files that the recipe leaves out."""
    try:
        files = read_diff(scratch, piece.text)
    except NotADiffError as error:
        again = "correct the file, or write it again: `git diff --binary`, `git format-patch`"
        hint = again if isinstance(planned.patch, FilePatch) else ""
        what = f"{piece.name} is not a diff that can be applied"
        raise PatchError(what, str(error), hint) from error
    if planned.scope is not None:
        refuse_compiled(planned.scope, piece.name, files)
    kept, left = diff.without(files, planned.patch.leave_out)
    idle = [g for g in planned.patch.leave_out if not diff.without(files, [g])[1]]
    if idle and not isinstance(planned.patch, PickPatch):
        log(f"{piece.name}: leave_out names no file of it: {', '.join(idle)}")
    if left:
        log(f"{piece.name}: left out by leave_out: {', '.join(left)}")
    if planned.scope is not None:
        kept, elsewhere = package_part(planned.scope, piece.name, kept)
        left += elsewhere
        if elsewhere:
            names = ", ".join(elsewhere)
            log(f"{piece.name}: left out, because the installed package lacks it: {names}")
    if not kept:
        raise PatchError(
            f"nothing is left of {piece.name}",
            f"all of its files are left out: {', '.join(left)}",
            "narrow leave_out, or drop the patch",
        )
    return kept


def pieces(context: PatchContext, planned: PlannedPatch, tree: str) -> Iterator[Piece]:
    """The diffs of a patch; a script's diff is its changes to ``tree``."""
    try:
        match planned.patch:
            case PullPatch(base=base, head=head):
                text = between(context.repositories, planned, base, head)
                yield Piece(planned.name, text, planned.url, base, head)
            case PickPatch(pick=pick):
                yield from picked(context.repositories, planned, pick)
            case ScriptPatch(script=script):
                yield scripted(context, planned, script, tree)
            case AddPatch(add=add):
                yield Piece(planned.name, _added(context.repositories, planned, add, tree))
            case _:
                yield Piece(planned.name, planned.content)
    except UpstreamLacksError as error:
        after = planned.patch.origin.after
        raise lost(context.repositories, planned, after, error) from error


def _added(repositories: Repositories, planned: PlannedPatch, add: Add, tree: str) -> bytes:
    scratch = repositories.scratch
    other = repositories.pin(planned.url, add.commit)
    found = {
        add.to + item.path.removeprefix(add.path): item for item in scratch.items(other, add.path)
    }
    if not found:
        raise PatchError(
            f"{planned.name} does not exist",
            f"{add.commit} of {planned.url} has no {add.path}",
        )
    there = [item.path for item in scratch.items(tree, add.to)]
    if there:
        raise PatchError(
            f"{planned.name} would replace existing files", ", ".join(there[:5]), "correct `to`"
        )
    if add.distribution is not None:
        files = {path: scratch.read(item.object) for path, item in found.items()}
        for path, content in dist_info(add.distribution, files).items():
            found[path] = scratch.blob(path, content)
    return scratch.diff(tree, scratch.with_items(tree, found))


def _refusal(
    planned: PlannedPatch, piece: Piece, files: list[FileDiff], result: Attempt, by: str
) -> PatchError:
    """The error of a diff that does not apply; ``by`` is the earlier patch that is the reason."""
    details = "\n".join(str(conflict) for conflict in result.conflicts)
    if by and result.state == PatchState.UPSTREAM:
        what = f"{piece.name} changes nothing: your earlier patch {by} makes this change already"
        return PatchError(what, hint="remove one of the two from the recipe")
    if by:
        return PatchError(
            f"{piece.name} does not apply: your earlier patch {by} changed these lines",
            details,
            f"make it anew on the source with {by} applied, or join the two",
        )
    if result.state == PatchState.UPSTREAM:
        remedy = "drop it from the recipe"
        if isinstance(planned.patch, PickPatch) and piece.base != planned.patch.pick.after:
            remedy = f'set without = ["{piece.head}"] in `pick`'
        return PatchError(
            f"{piece.name} is already in the source",
            hint=f"{remedy}; `builder patch check` names the commit that introduced it",
        )
    if result.state == PatchState.ABSENT:
        return PatchError(
            f"{piece.name} does not apply: its files do not exist",
            details,
            'drop the patch, or set expect = "absent" if the files are known to be missing',
        )
    if result.state == PatchState.DOUBTFUL:
        return PatchError(
            f"{piece.name} is not applied: {PatchState.DOUBTFUL.meaning}",
            details,
            "see `builder patch check`; drop the patch, or make it anew on this source",
        )
    count, hunks = len(result.conflicts), sum(len(file.hunks) for file in files)
    share = f" ({count} of {hunks} hunks)" if count < hunks else ""
    return PatchError(
        f"{piece.name} does not apply{share}",
        details,
        "`builder patch check` names the commits that changed these lines",
    )
