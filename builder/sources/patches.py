"""The patches of a recipe, applied in order to a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from builder.core.errors import PatchError
from builder.core.log import Log
from builder.plan.inputs import PlannedPatch
from builder.recipes.patches import Add, AddPatch, FilePatch, PickPatch, PullPatch, ScriptPatch
from builder.sources import diff, package
from builder.sources.apply import Attempt, attempt, is_absent, read, targets_of
from builder.sources.diff import FileDiff, NotADiffError
from builder.sources.errors import UpstreamLacksError
from builder.sources.patch_state import PatchState
from builder.sources.patches_context import PatchContext
from builder.sources.ranges import Piece, between, lost, picked
from builder.sources.repositories import Repositories
from builder.sources.scratch import Scratch
from builder.sources.script import scripted


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
        files = read(scratch, piece.text)
    except NotADiffError as error:
        again = "correct the file, or write it again: `git diff --binary`, `git format-patch`"
        hint = again if isinstance(planned.patch, FilePatch) else ""
        what = f"{piece.name} is not a diff that can be applied"
        raise PatchError(what, str(error), hint) from error
    if planned.scope is not None:
        package.refuse_compiled(planned.scope, piece.name, files)
    kept, left = diff.without(files, planned.patch.leave_out)
    idle = [g for g in planned.patch.leave_out if not diff.without(files, [g])[1]]
    if idle and not isinstance(planned.patch, PickPatch):
        log(f"{piece.name}: leave_out names no file of it: {', '.join(idle)}")
    if left:
        log(f"{piece.name}: left out by leave_out: {', '.join(left)}")
    if planned.scope is not None:
        kept, elsewhere = package.cut(planned.scope, piece.name, kept)
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
        for path, content in package.dist_info(add.distribution, files).items():
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
