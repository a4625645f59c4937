"""Patches that are scripts: run on a copy of the tree in a container, the changes are the diff."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from builder.core.errors import PatchError, UntriedError
from builder.docker import containers
from builder.docker.client import Finished
from builder.plan.inputs import PlannedPatch
from builder.recipes.patches import Script
from builder.sources.apply import is_absent
from builder.sources.patches_context import AbsentError, HalfDoneError, PatchContext
from builder.sources.ranges import Piece
from builder.sources.repositories import Repositories
from builder.sources.repository import EMPTY_TREE, Item
from builder.sources.scratch import NoTreeError, Scratch

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
