"""Diffs limited to the files that an installed package contains, or refused."""

from __future__ import annotations

from collections.abc import Sequence

from builder.errors import PatchError
from builder.families.package_paths import PackagePaths
from builder.patches.diff import FileDiff, matches, without


def cut(
    paths: PackagePaths, name: str, files: Sequence[FileDiff]
) -> tuple[list[FileDiff], list[str]]:
    """The files of a diff that the package contains, and the paths of those that it does not.

    Raises ``PatchError`` for a file of which this is unknown.
    """
    kept = [file for file in files if all(map(paths.contains, file.paths))]
    others = [file for file in files if file not in kept]
    left_out = [file.path for file in others if _elsewhere(paths, file)]
    unknown = [file.path for file in others if not _elsewhere(paths, file)]
    if unknown:
        why = f"it is unknown whether an installed {paths.package} contains it"
        if any(matches(path, paths.needs) for path in unknown):
            why = f"they declare what {paths.package} requires, and an overlay adds no packages"
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
