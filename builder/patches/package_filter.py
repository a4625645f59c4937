"""What of a project's repository an installed package has: diffs are cut to that, or refused."""

from __future__ import annotations

from collections.abc import Sequence

from builder.errors import PatchError
from builder.families.package_paths import PackagePaths
from builder.patches.diff import FileDiff, matches, without


def cut(
    paths: PackagePaths, name: str, files: Sequence[FileDiff]
) -> tuple[list[FileDiff], list[str]]:
    """The files of a diff that the package has, and the paths of those that it does not.

    Raises ``PatchError`` for one that it is not known of.
    """
    kept = [file for file in files if all(_inside(paths, path) for path in file.paths)]
    others = [file for file in files if file not in kept]
    left = [file.path for file in others if _elsewhere(paths, file)]
    unknown = [file.path for file in others if not _elsewhere(paths, file)]
    if unknown:
        why = f"what an installed {paths.package} makes of it is not known"
        if any(matches(path, paths.needs) for path in unknown):
            why = f"they say what {paths.package} needs, and the packages of the image stay"
        raise PatchError(
            f"{name} changes {', '.join(unknown)}",
            why,
            "say leave_out in the recipe, where the rest is right without it",
        )
    return kept, left


def refuse_compiled(paths: PackagePaths, name: str, files: Sequence[FileDiff]) -> None:
    """Raise ``PatchError`` for a diff that an installed package cannot have."""
    _, found = without(files, paths.compiled)
    if found:
        raise PatchError(
            f"{name} cannot be laid over an installed package",
            f"it changes what is compiled: {', '.join(found)}",
            f"it takes a build of {paths.package} from source (a commit, the CUDA toolkit, and "
            "hours of compiling), or a release that has it; a part of it is never applied",
        )


def _inside(paths: PackagePaths, path: str) -> bool:
    return path.startswith(f"{paths.package}/")


def _elsewhere(paths: PackagePaths, file: FileDiff) -> bool:
    return all(matches(path, paths.elsewhere) for path in file.paths)
