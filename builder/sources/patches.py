"""The patches of a recipe: each one made as diffs, and applied in order to a tree."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from uuid import uuid4

from builder.core.errors import FetchError, PatchError, UntriedError, listed
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
    Pick,
    PickPatch,
    PullPatch,
    Script,
    ScriptPatch,
)
from builder.sources import diff
from builder.sources.diff import (
    Attempt,
    FileDiff,
    NoDiffError,
    NotADiffError,
    PatchState,
    attempt,
    is_absent,
    matches,
    targets_of,
)
from builder.sources.git import (
    EMPTY_TREE,
    CountedFile,
    Item,
    NotApplicableError,
    NoTreeError,
    Scratch,
    UpstreamLacksError,
)
from builder.sources.mirrors import Repositories

MOST_PRINTED = 12  # lines of a script that are shown
MOST_NAMES = 12  # of files, in a message
SCRIPT_LIMITS = ("--memory=2g", "--ulimit=fsize=268435456", "--env=HOME=/tmp")


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


# All patches of a recipe.


def apply_all(context: PatchContext, tree: str, patches: tuple[PlannedPatch, ...]) -> str:
    """Apply patches in order; return the new tree."""
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


def _refusal(
    planned: PlannedPatch, piece: Piece, files: list[FileDiff], result: Attempt, by: str
) -> PatchError:
    """The error of a diff that does not apply; ``by`` is the earlier patch that is the reason."""
    details = "\n".join(str(conflict) for conflict in result.conflicts)
    what, why, hint = f"{piece.name} does not apply", details, ""
    if by and result.state == PatchState.UPSTREAM:
        what = f"{piece.name} changes nothing: your earlier patch {by} makes this change already"
        why, hint = "", "remove one of the two from the recipe"
    elif by:
        what += f": your earlier patch {by} changed these lines"
        hint = f"make it anew on the source with {by} applied, or join the two"
    elif result.state == PatchState.UPSTREAM:
        remedy = "drop it from the recipe"
        if isinstance(planned.patch, PickPatch) and piece.base != planned.patch.pick.after:
            remedy = f'set without = ["{piece.head}"] in `pick`'
        what, why = f"{piece.name} is already in the source", ""
        hint = f"{remedy}; `builder patch check` names the commit that introduced it"
    elif result.state == PatchState.ABSENT:
        what += ": its files do not exist"
        hint = 'drop the patch, or set expect = "absent" if the files are known to be missing'
    elif result.state == PatchState.DOUBTFUL:
        what = f"{piece.name} is not applied: {PatchState.DOUBTFUL.meaning}"
        hint = "see `builder patch check`; drop the patch, or make it anew on this source"
    else:
        count, hunks = len(result.conflicts), sum(len(file.hunks) for file in files)
        what += f" ({count} of {hunks} hunks)" if count < hunks else ""
        hint = "`builder patch check` names the commits that changed these lines"
    return PatchError(what, why, hint)


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


# The files of a diff, as git reads them too, without the files that are left out.


MAIL = re.compile(rb"^From \S+ \w{3} \w{3} [^\n]*(?:\n(?=[!-9;-~]+:)|\n?\Z)", re.MULTILINE)
"""The line before a mail of a mailbox (git-mailsplit(1)), where the headers of one follow."""
MAIL_HEADERS = re.compile(rb"(?=[^\n]+\n)(?:[!-9;-~]+:[^\n]*\n|[ \t]+[^\n]*\n)+\r?\n")
COVER = re.compile(rb"^Subject:[^\n]* 0+/\d+\]", re.MULTILINE)


def read_diff(scratch: Scratch, text: bytes) -> list[FileDiff]:
    """The files of a diff or of a mailbox, as git and ``diff.parse`` both read them.

    The diff of each mail is a step of its own.  Raises ``NotADiffError`` where git refuses the
    text or reads it otherwise, and for a mail without a diff that is no cover letter.
    """
    files: list[FileDiff] = []
    parts = _mails(text)
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


def _mails(text: bytes) -> list[tuple[int, bytes, bool]]:
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


def _part(
    scratch: Scratch, line: int, part: bytes, *, mailed: bool, step: int
) -> Iterator[FileDiff]:
    """The files of one mail, or of a text without mails that starts after ``line``."""
    text = scratch.diff_of_mail(part) if mailed else part
    if part.endswith(text):
        line += part.count(b"\n") - text.count(b"\n")
        text = b"\n" * line + text  # so that errors name the lines of the file
    if mailed and COVER.search(part) and b"\ndiff --git " not in text:
        return
    found = diff.parse(text)
    try:
        read_by_git = scratch.files_of(text)
    except NotApplicableError as error:
        raise NotADiffError(f"git refuses it: {diff.reasons(str(error))}") from error
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


def files_of(scratch: Scratch, planned: PlannedPatch, piece: Piece, log: Log) -> list[FileDiff]:
    """The files of a diff, without the files that the recipe leaves out."""
    try:
        files = read_diff(scratch, piece.text)
    except NotADiffError as error:
        again = "correct the file, or write it again: `git diff --binary`, `git format-patch`"
        hint = again if isinstance(planned.patch, FilePatch) else ""
        what = f"{piece.name} is not a diff that can be applied"
        raise PatchError(what, str(error), hint) from error
    scope = planned.scope
    if scope is not None and (compiled := diff.without(files, scope.compiled)[1]):
        raise PatchError(
            f"{piece.name} cannot overlay an installed package",
            f"it changes compiled files: {', '.join(compiled)}",
            f"build {scope.package} from source (a commit, the CUDA toolkit, and hours of "
            "compiling), or use a release that has it; builder never applies a part of a patch",
        )
    globs = planned.patch.leave_out
    kept, left = diff.without(files, globs)
    idle = [glob for glob in globs if not diff.without(files, [glob])[1]]
    if idle and not isinstance(planned.patch, PickPatch):
        log(f"{piece.name}: leave_out names no file of it: {', '.join(idle)}")
    if left:
        log(f"{piece.name}: left out by leave_out: {', '.join(left)}")
    if scope is not None:
        kept, elsewhere = _package_part(scope, piece.name, kept)
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


def _package_part(
    paths: PackagePaths, name: str, files: Sequence[FileDiff]
) -> tuple[list[FileDiff], list[str]]:
    """The files of a diff that an installed package contains, and the paths of the others."""
    kept, left_out, unknown = list[FileDiff](), list[str](), list[str]()
    for file in files:
        if all(map(paths.contains, file.paths)):
            kept.append(file)
        elif all(matches(path, paths.elsewhere) for path in file.paths):
            left_out.append(file.path)
        else:
            unknown.append(file.path)
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


# The diffs of each kind of patch.


def pieces(context: PatchContext, planned: PlannedPatch, tree: str) -> Iterator[Piece]:
    """The diffs of a patch; a script's diff is its changes to ``tree``."""
    repositories = context.repositories
    try:
        match planned.patch:
            case PullPatch(base=base, head=head):
                _require_ancestor(repositories, planned, base, head)
                text = diff_of(repositories, planned.url, base, head, planned.name)
                yield Piece(planned.name, text, planned.url, base, head)
            case PickPatch(pick=pick):
                yield from _picked(repositories, planned, pick)
            case ScriptPatch(script=script):
                yield _scripted(context, planned, script, tree)
            case AddPatch(add=add):
                yield Piece(planned.name, _added(repositories, planned, add, tree))
            case _:
                yield Piece(planned.name, planned.content)
    except UpstreamLacksError as error:
        raise _lost(repositories, planned, error) from error


def _require_ancestor(
    repositories: Repositories, planned: PlannedPatch, base: str, head: str
) -> None:
    repositories.walk(planned.url, head)
    scratch = repositories.scratch
    if scratch.missing([base]) or not scratch.is_ancestor(base, head):
        raise PatchError(
            f"{planned.name} is not the diff of a branch",
            f"{base} is not an ancestor of {head} in {planned.url}",
            "`builder patch add` finds the commit at which the branch forked",
        )


def diff_of(repositories: Repositories, url: str, old: str, new: str, name: str) -> bytes:
    """The diff between two walked commits; raises ``PatchError`` if it is empty."""
    repositories.changed_contents(url, old, new)
    text = repositories.scratch.diff(old, new)
    if not text:
        raise PatchError(f"{name} changes nothing", f"{old} and {new} have the same tree")
    return text


def _picked(repositories: Repositories, planned: PlannedPatch, pick: Pick) -> Iterator[Piece]:
    """A diff for each commit of a range, oldest first; a merge has none."""
    span, name = f"{pick.after}..{pick.to}", planned.name
    _require_ancestor(repositories, planned, pick.after, pick.to)
    listing = repositories.scratch.text("log", "--reverse", "--format=%H %P%x09%s", span)
    if not listing:
        raise PatchError(f"{name} changes nothing", f"there is no commit after {pick.after}")
    lines = listing.splitlines()
    if strange := sorted(set(pick.without) - {line[:40] for line in lines}):
        raise PatchError(
            f"{name} leaves out commits that it does not contain",
            f"not among the commits of {span}: {', '.join(strange)}",
            "correct `without`",
        )
    if len(pick.without) == len(lines):
        raise PatchError(
            f"nothing is left of {name}",
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
                f"{name} contains the merge {commit[:12]} ({subject})",
                "a merge has no diff of its own",
                "pick the ranges before and after it",
            )
        title = f"commit {commit[:12]} ({subject})"
        base = parents[0] if parents else EMPTY_TREE
        text = diff_of(repositories, planned.url, base, commit, title)
        yield Piece(title, text, planned.url, base, commit)


def _lost(
    repositories: Repositories, planned: PlannedPatch, error: UpstreamLacksError
) -> UpstreamLacksError:
    """The error of a patch whose commit is gone: the pull request's present head, if any."""
    patch, commit = planned.patch, planned.patch.origin.after
    hint = f"push {commit} from a clone that has it to a repository of yours: git = URL"
    what = f"{planned.name}: {planned.url} no longer has {commit[:12]}"
    if isinstance(patch, PullPatch):
        try:
            head = repositories.mirror(planned.url).advertised().pull(patch.pull)
        except FetchError:
            head = None  # the repository is gone, too
        if head is None:
            what += f", and no pull request {patch.pull}"
        else:
            what += f"; the head of pull request {patch.pull} is {head[:12]} now"
            where = f" --repository {patch.git}" if patch.git else ""
            pins = f"`builder patch add {planned.recipe} --pull {patch.pull}{where}` pins that"
            hint = f"{pins}; or {hint}"
    return UpstreamLacksError(what, error.why, hint)


def _added(repositories: Repositories, planned: PlannedPatch, add: Add, tree: str) -> bytes:
    scratch = repositories.scratch
    other = repositories.pin(planned.url, add.commit)
    found = {
        add.to + item.path.removeprefix(add.path): item for item in scratch.items(other, add.path)
    }
    if not found:
        why = f"{add.commit} of {planned.url} has no {add.path}"
        raise PatchError(f"{planned.name} does not exist", why)
    if there := [item.path for item in scratch.items(tree, add.to)]:
        raise PatchError(
            f"{planned.name} would replace existing files", ", ".join(there[:5]), "correct `to`"
        )
    if add.distribution is not None:
        files = {path: scratch.read(item.object) for path, item in found.items()}
        for path, content in _dist_info(add.distribution, files).items():
            found[path] = scratch.blob(path, content)
    return scratch.diff(tree, scratch.with_items(tree, found))


def _dist_info(distribution: Distribution, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The ``.dist-info`` directory that makes ``files`` an installed project, by path.

    Python packaging: "Recording installed projects", "Core metadata" and "Entry points".
    """
    project, version = distribution.name, distribution.version
    name = project.replace("-", "_").replace(".", "_").lower()
    folder = f"{name}-{version}.dist-info"
    points = ""
    for group, named in distribution.entry_points.items():
        points += "".join([f"[{group}]\n", *(f"{key} = {value}\n" for key, value in named.items())])
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n",
        "INSTALLER": "builder\n",
        "entry_points.txt": points,
    }
    made = {f"{folder}/{path}": text.encode() for path, text in texts.items() if text}
    record = ""
    for path, content in {**files, **made}.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(content)}\n"
    return {**made, f"{folder}/RECORD": f"{record}{folder}/RECORD,,\n".encode()}


# A script, run on a copy of the tree in a container: its changes are the diff.


def _scripted(context: PatchContext, planned: PlannedPatch, script: Script, tree: str) -> Piece:
    scratch, name = context.scratch, planned.name
    if is_absent(scratch, tree, script.edits):
        raise AbsentError(
            f"{name} finds no file to edit",
            f"missing: {', '.join(script.edits)}",
            'drop the patch, or set expect = "absent" if the files are known to be missing',
        )
    program = _program(context.repositories, planned, script)
    if context.image is None:
        raise UntriedError(
            f"{name} runs in a container of the base, which is not built yet",
            hint="`builder build` builds the base first",
        )
    folder = context.work / f"script-{uuid4().hex}"
    folder.mkdir()
    try:
        copy = folder / "tree"
        scratch.export(tree, copy)
        file = folder / Path(script.path).name
        file.write_bytes(program)
        file.chmod(0o755)
        done = _run_script(context.image, name, script, file, copy)
        try:
            changed = scratch.tree_from(copy)
        except NoTreeError as error:
            raise PatchError(
                f"{name} leaves files that git cannot store",
                str(error),
                "pin a revision that removes such files",
            ) from error
        text = scratch.diff(tree, changed)
        touched = scratch.changes(tree, changed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    printed = tuple(done.output.strip().splitlines()[-MOST_PRINTED:])
    _require_success(name, script, done, touched, "\n".join(printed))
    if changed == EMPTY_TREE:
        raise PatchError(
            f"{name} deletes every file", hint="drop it, or pin a revision that fits the source"
        )
    return Piece(name, text, printed=printed)


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
    changed = {new.path for _, new in touched}
    gone = {new.path for _, new in touched if not new.object.strip("0")}
    others = sorted((changed if script.edits else gone) - set(script.edits))
    if others:
        did = "deleted" if gone.issuperset(others) else "changed"
        raise PatchError(
            f"{name} changes files that the recipe does not name",
            f"it {did} {listed(others, MOST_NAMES, ', ')}",
            "name the files in `edits`, or pin a revision that does not change them",
        )
    output = f"it printed:\n{printed}" if printed else "it printed nothing"
    if not touched:
        raise PatchError(
            f"{name} exited 0 and changed nothing",
            output,
            "drop it, or pin a revision that fits the source",
        )
    unprinted = ", ".join(repr(text) for text in script.contains if text not in done.output)
    unchanged = ", ".join(sorted(set(script.edits) - changed))
    if unprinted or unchanged:
        key = "contains" if unprinted else "edits"
        lacking = f"print {unprinted}" if unprinted else f"change {unchanged}"
        raise HalfDoneError(
            f"{name} exited 0 and did not {lacking}",
            output,
            f"it applied only in part: pin a revision that fits the source, or correct `{key}`",
        )


def _program(repositories: Repositories, planned: PlannedPatch, script: Script) -> bytes:
    tree = repositories.pin(planned.url, script.commit)
    program = repositories.scratch.file(tree, script.path)
    if program is None:
        why = f"{script.commit} of {planned.url} has no file {script.path}"
        raise PatchError(f"{planned.name} does not exist", why)
    found = hashlib.sha256(program).hexdigest()
    if script.sha256 is not None and found != script.sha256:
        why = f"expected sha256 {script.sha256}, got {found}"
        raise PatchError(f"{planned.name} differs from its pin", why)
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
