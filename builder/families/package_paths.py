"""Paths of a project's repository by what an installed package makes of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackagePaths:
    """Globs as in fnmatch, relative to the repository."""

    package: str
    """Directory of the package: what stands below is installed under the same path."""
    compiled: tuple[str, ...]
    """What is compiled into the package, or decides how."""
    needs: tuple[str, ...]
    """What lists the packages that it requires."""
    elsewhere: tuple[str, ...]
    """What is in no installed package."""
