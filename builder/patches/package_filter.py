"""What of a project's repository an installed package has: diffs are cut to that, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.errors import PatchError
from builder.patches.diff import FileDiff, matches, without


@dataclass(frozen=True, slots=True)
class Scope:
    """Paths of a repository by what an installed package makes of them; globs as in fnmatch."""

    package: str
    """Directory of the package: what stands below is installed under the same path."""
    compiled: tuple[str, ...]
    """What is compiled into the package, or decides how."""
    needs: tuple[str, ...]
    """What says which other packages it needs."""
    elsewhere: tuple[str, ...]
    """What is in no installed package."""

    def cut(self, name: str, files: Sequence[FileDiff]) -> tuple[list[FileDiff], list[str]]:
        """The files of a diff that the package has, and the paths of those that it does not.

        Raises ``PatchError`` for one that it is not known of.
        """
        kept = [file for file in files if all(self._inside(path) for path in file.paths)]
        others = [file for file in files if file not in kept]
        left = [file.path for file in others if self._elsewhere(file)]
        unknown = [file.path for file in others if not self._elsewhere(file)]
        if unknown:
            why = f"what an installed {self.package} makes of it is not known"
            if any(matches(path, self.needs) for path in unknown):
                why = f"they say what {self.package} needs, and the packages of the image stay"
            raise PatchError(
                f"{name} changes {', '.join(unknown)}",
                why,
                "say leave_out in the recipe, where the rest is right without it",
            )
        return kept, left

    def refuse_compiled(self, name: str, files: Sequence[FileDiff]) -> None:
        """Raise ``PatchError`` for a diff that an installed package cannot have."""
        _, found = without(files, self.compiled)
        if found:
            raise PatchError(
                f"{name} cannot be laid over an installed package",
                f"it changes what is compiled: {', '.join(found)}",
                f"it takes a build of {self.package} from source (a commit, the CUDA toolkit, and "
                "hours of compiling), or a release that has it; a part of it is never applied",
            )

    def _inside(self, path: str) -> bool:
        return path.startswith(f"{self.package}/")

    def _elsewhere(self, file: FileDiff) -> bool:
        return all(matches(path, self.elsewhere) for path in file.paths)
