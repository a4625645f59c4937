"""A tree becomes a patched tree, or an error that says which patch does not fit, and why."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from builder.errors import PatchError, UntriedError
from builder.patches import diff, package_filter
from builder.patches.apply import FITS, Fate, attempt, is_absent, targets_of
from builder.patches.diff import FileDiff, NotADiffError
from builder.patches.distribution import dist_info
from builder.patches.ranges import Piece, between, picked
from builder.plan.inputs import PlannedPatch
from builder.recipes.schema import Add, AddPatch, PickPatch, PullPatch, Script, ScriptPatch
from builder.tools.docker import containers
from builder.tools.git.repositories import Repositories
from builder.tools.git.repository import EMPTY_TREE, Item
from builder.tools.git.scratch import NoTreeError, Scratch
from builder.tools.log import Log

MOST_PRINTED = 12  # lines of a script that are shown
MOST_NAMES = 12  # of files, in a message
SCRIPT_LIMITS = ("--memory=2g", "--ulimit=fsize=268435456", "--env=HOME=/tmp")


class AbsentError(PatchError):
    """The files that a patch changes are not there."""


class HalfDoneError(PatchError):
    """A script changed something, and failed or did not print all that it must."""


@dataclass(frozen=True, slots=True)
class PatchContext:
    """What patches are made and tried with.

    ``image`` is the engine's image that scripts run in; None where there is none.
    """

    repositories: Repositories
    work: Path
    image: str | None
    log: Log

    @property
    def scratch(self) -> Scratch:
        """Where trees are made."""
        return self.repositories.scratch


def apply_all(context: PatchContext, tree: str, patches: tuple[PlannedPatch, ...]) -> str:
    """Apply patches in order; return the new tree.

    Raises ``PatchError`` for the first one that does not fit or changes nothing, ``FetchError``
    when its commits cannot be had, ``UntriedError`` for a script without an engine.
    """
    for planned in patches:
        if planned.patch.expect == "absent":
            require_absence(context, planned, tree)
            context.log(f"{planned.name} is not applied: what it changes is not there, as expected")
            continue
        before = tree
        for piece in pieces(context, planned, tree):
            files = files_of(planned, piece, context.log)
            fate = attempt(
                context.scratch,
                tree,
                files,
                fuzz=planned.patch.fuzz,
                three_way=planned.patch.three_way,
            )
            if fate.state not in FITS:
                raise _refusal(planned, piece, fate)
            for path, hunk, moved in fate.offsets:
                context.log(f"{piece.name}: hunk {hunk} of {path} applies {moved:+} lines away")
            tree = fate.tree
        if tree == before:
            raise PatchError(
                f"{planned.name} changes nothing",
                hint="drop it, or mend it: see `builder patch check`",
            )
        context.log(f"{planned.name} is applied")
    return tree


def require_absence(context: PatchContext, planned: PlannedPatch, tree: str) -> None:
    """Raise ``PatchError`` where a tree has a file that an absent patch would change."""
    paths: list[str] = []
    if isinstance(planned.patch, ScriptPatch):
        paths = planned.patch.script.edits
    else:
        for piece in pieces(context, planned, tree):
            paths += targets_of(files_of(planned, piece, context.log))
    if not paths:
        raise PatchError(
            f"{planned.name} only adds files: nothing of it can be absent",
            hint='apply it (without expect = "absent"), or drop it',
        )
    if not is_absent(context.scratch, tree, paths):
        raise PatchError(
            f"{planned.name} is expected to be absent, and what it changes is there",
            ", ".join(item.path for item in context.scratch.items(tree, *paths)),
            "apply it (without expect), or drop it: see `builder patch check`",
        )


def files_of(planned: PlannedPatch, piece: Piece, log: Log) -> list[FileDiff]:
    """The files of a diff, without those that the recipe leaves out.

    Raises ``PatchError`` when it is no diff that may be applied, or nothing is left of it.
    """
    try:
        files = diff.parse(piece.text)
    except NotADiffError as error:
        raise PatchError(f"{piece.name} is not a patch that can be applied", str(error)) from error
    if planned.scope is not None:
        package_filter.refuse_compiled(planned.scope, piece.name, files)
    kept, left = diff.without(files, planned.patch.leave_out)
    if left:
        log(f"{piece.name}: left out, as the recipe says: {', '.join(left)}")
    if planned.scope is not None:
        kept, elsewhere = package_filter.cut(planned.scope, piece.name, kept)
        left += elsewhere
        if elsewhere:
            told = ", ".join(elsewhere)
            log(f"{piece.name}: left out, as no installed package has it: {told}")
    if not kept:
        raise PatchError(
            f"nothing is left of {piece.name}",
            f"all of it is left out: {', '.join(left)}",
            "narrow leave_out, or drop the patch",
        )
    return kept


def pieces(context: PatchContext, planned: PlannedPatch, tree: str) -> Iterator[Piece]:
    """The diffs that a patch consists of; a script's is what it makes of ``tree``.

    Raises like ``apply_all``.
    """
    match planned.patch:
        case PullPatch(base=base, head=head, pull=pull):
            text = between(context.repositories, planned, base, head)
            yield Piece(planned.name, text, planned.url, base, head, pull)
        case PickPatch(pick=pick):
            yield from picked(context.repositories, planned, pick)
        case ScriptPatch(script=script):
            yield _scripted(context, planned, script, tree)
        case AddPatch(add=add):
            yield Piece(planned.name, _added(context.repositories, planned, add, tree))
        case _:
            yield Piece(planned.name, planned.content)


def _scripted(context: PatchContext, planned: PlannedPatch, script: Script, tree: str) -> Piece:
    """Run a script on a copy of the tree, sealed off; what it changed is the diff.

    Raises ``PatchError`` when it fails, does not end, changes nothing, or does not print what the
    recipe says.
    """
    if is_absent(context.scratch, tree, script.edits):
        raise AbsentError(
            f"{planned.name} finds nothing to edit",
            f"not there: {', '.join(script.edits)}",
            'drop it, or say expect = "absent" where that is known',
        )
    program = _program(context.repositories, planned, script)
    if context.image is None:
        raise UntriedError(
            f"{planned.name} runs in a container, and there is no image for it yet",
            hint="build the recipe's base first: `builder build` does",
        )
    folder = context.work / f"script-{uuid4().hex}"
    folder.mkdir()
    try:
        copy = folder / "tree"
        context.repositories.repairing(lambda: context.scratch.export(tree, copy))
        file = folder / Path(script.path).name
        file.write_bytes(program)
        file.chmod(0o755)
        done = _run_script(context.image, planned.name, script, file, copy)
        changed = _taken(context.scratch, planned.name, copy)
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
    done: containers.Finished,
    touched: Sequence[tuple[Item, Item]],
    printed: str,
) -> None:
    """Raise ``PatchError`` unless a script ended well, edited what it may, and printed ``says``.

    ``HalfDoneError`` where it has edited something all the same.
    """
    if done.status != 0:
        raise (HalfDoneError if touched else PatchError)(
            f"{name} failed with exit status {done.status}",
            printed,
            "it sees the tree and nothing else, read-only, without network",
        )
    _require_only_edits(name, script, touched)
    if not touched:
        raise PatchError(
            f"{name} exited 0 and changed nothing",
            f"it printed:\n{printed}" if printed else "it printed nothing",
            "drop it, or pin a revision that fits the source",
        )
    missing = [text for text in script.contains if text not in done.output]
    if missing:
        raise HalfDoneError(
            f"{name} exited 0 and did not print {', '.join(map(repr, missing))}",
            f"it printed:\n{printed}" if printed else "it printed nothing",
            "it applied in part only: pin a revision that fits the source, or correct says",
        )


def _taken(scratch: Scratch, name: str, folder: Path) -> str:
    """What a script left of its copy, as a tree."""
    try:
        return scratch.tree_from(folder)
    except NoTreeError as error:
        raise PatchError(
            f"{name} leaves what cannot be part of a source",
            str(error),
            "pin a revision that cleans up, or that leaves such files out",
        ) from error


def _require_only_edits(name: str, script: Script, touched: Sequence[tuple[Item, Item]]) -> None:
    """Raise ``PatchError`` for a change, or a file deleted, that the recipe does not name."""
    gone = {new.path for _, new in touched if not new.object.strip("0")}
    others = sorted({new.path for _, new in touched} if script.edits else gone)
    others = [path for path in others if path not in script.edits]
    if others:
        did = "deleted" if gone.issuperset(others) else "changed"
        shown = ", ".join(others[:MOST_NAMES])
        more = f" and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
        raise PatchError(
            f"{name} changes more than the recipe says",
            f"it {did} {shown}{more}",
            "name the files in edits, or pin a revision that leaves them alone",
        )


def _program(repositories: Repositories, planned: PlannedPatch, script: Script) -> bytes:
    def read() -> bytes | None:
        tree = repositories.pin(planned.url, script.commit)
        return repositories.scratch.file(tree, script.path)

    program = repositories.repairing(read)
    if program is None:
        raise PatchError(
            f"{planned.name} is not there", f"{script.commit} of {planned.url} has no such file"
        )
    found = hashlib.sha256(program).hexdigest()
    if script.sha256 is not None and found != script.sha256:
        raise PatchError(
            f"{planned.name} is not what was pinned",
            f"expected sha256 {script.sha256}, got {found}",
        )
    return program


def _run_script(
    image: str, name: str, script: Script, file: Path, tree: Path
) -> containers.Finished:
    """Run the program on a copy of the tree.

    Raises ``PatchError`` when it does not end.
    """
    where = f"/patch/{file.name}"
    python = script.path.endswith(".py")
    try:
        return containers.run(
            image,
            # An engine of the image is not seen: a script that imports one would edit it.
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
        )
    except containers.TimedOutError as error:
        raise PatchError(
            f"{name} did not end",
            f"it was stopped after {script.seconds} s",
            "it runs without network: does it wait for one? [script] seconds gives it more time",
        ) from error


def _added(repositories: Repositories, planned: PlannedPatch, add: Add, tree: str) -> bytes:
    """The diff that puts a directory of another commit into the tree."""

    def place() -> bytes:
        scratch = repositories.scratch
        other = repositories.pin(planned.url, add.commit)
        found = {
            add.to + item.path.removeprefix(add.path): item
            for item in scratch.items(other, add.path)
        }
        if not found:
            raise PatchError(
                f"{planned.name} is not there",
                f"{add.commit} of {planned.url} has no {add.path}",
            )
        there = [item.path for item in scratch.items(tree, add.to)]
        if there:
            raise PatchError(
                f"{planned.name} would replace what is there", ", ".join(there[:5]), "see `to`"
            )
        if add.distribution is not None:
            files = {path: scratch.read(item.object) for path, item in found.items()}
            for path, content in dist_info(add.distribution, files).items():
                found[path] = scratch.blob(path, content)
        return scratch.diff(tree, scratch.with_items(tree, found))

    return repositories.repairing(place)


def _refusal(planned: PlannedPatch, piece: Piece, fate: Fate) -> PatchError:
    details = "\n".join(str(conflict) for conflict in fate.conflicts)
    if fate.state == "upstream":
        remedy = "drop it from the recipe"
        if isinstance(planned.patch, PickPatch) and piece.base != planned.patch.pick.after:
            remedy = f'say without = ["{piece.head}"] in `pick`'
        return PatchError(
            f"{piece.name} is in the source already",
            hint=f"{remedy}; `builder patch check` names the commit that brought it",
        )
    if fate.state == "absent":
        return PatchError(
            f"{piece.name} does not apply: what it changes is not there",
            details,
            'drop it, or say expect = "absent" where that is known',
        )
    if fate.state == "partly":
        return PatchError(
            f"{piece.name} applies in part only: none of it is applied",
            details,
            "`builder patch check` names the commits that changed these lines",
        )
    if fate.state == "not applicable":
        return PatchError(
            f"{piece.name} does not apply: the lines that it changes are not there",
            details,
            "`builder patch check` tells whether upstream ever had them; drop it if they went",
        )
    return PatchError(
        f"{piece.name} does not apply",
        details,
        "`builder patch check` names the commits that changed these lines",
    )
