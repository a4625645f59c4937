"""Patches of an installed Python package: its part of a diff, and the metadata of added files.

Added files become an installed project by a ``.dist-info`` directory (Python packaging, "Recording
installed projects", "Core metadata" and "Entry points").
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence

from builder.core.errors import PatchError
from builder.engines.package_paths import PackagePaths
from builder.recipes.patches import Distribution
from builder.sources.diff import FileDiff, matches, without


def cut(
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
