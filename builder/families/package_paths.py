"""Which paths of a repository an installed package contains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackagePaths:
    """Globs as in fnmatch, relative to the repository."""

    package: str
    """Directory of the package; its files are installed under the same paths."""
    compiled: tuple[str, ...]
    """Sources that are compiled into the package, and build files."""
    needs: tuple[str, ...]
    """Lists of required packages."""
    elsewhere: tuple[str, ...]
    """Files that no installed package contains."""
