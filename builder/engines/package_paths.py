"""Which paths of a repository an installed package contains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackagePaths:
    """Globs as in fnmatch, relative to the repository."""

    package: str
    """Directory of the package, in ``root``: its files are installed under the same paths."""
    compiled: tuple[str, ...]
    """Sources that are compiled into the package, and build files."""
    needs: tuple[str, ...]
    """Lists of required packages."""
    elsewhere: tuple[str, ...]
    """Files that no installed package contains."""
    root: str = ""
    """Directory of the repository that has the package: "python" for python/sglang. A patch names
    files as the repository does, also if the source is a wheel."""

    def contains(self, path: str) -> bool:
        """Whether the package contains a file of the repository."""
        return path.startswith(f"{self.root}/{self.package}/".removeprefix("/"))
