"""Which Debian packages the stages of a base or of an engine's image install."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.core.platforms import Architecture, Platforms
from builder.recipes.locks import DebianFile


@dataclass(frozen=True, slots=True)
class StagePackages:
    """The Debian packages that a stage asks for, beside the packages of the stage below."""

    stage: str
    below: str
    """The stage of the base that it begins with; empty: none."""
    architecture: Architecture
    packages: tuple[str, ...]
    foreign: Architecture | None = None
    """The other architecture whose packages it may have: the target of a cross build."""
    files: tuple[DebianFile, ...] | None = None
    """These packages and their dependencies, by a lock; None: the newest, when it is built."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The key by which an install of a lock is found."""
        return self.stage, self.architecture, self.foreign

    @property
    def context(self) -> str:
        """The named context that holds the files."""
        return f"debian-{self.stage}"


def compiling(
    stage: str, below: str, packages: Sequence[str], platforms: Platforms
) -> StagePackages:
    """A stage that compiles: on the build platform, also with libraries of the target."""
    foreign = platforms.target if platforms.cross else None
    return StagePackages(stage, below, platforms.build, tuple(packages), foreign)


def running(stage: str, below: str, packages: Sequence[str], platforms: Platforms) -> StagePackages:
    """A stage that becomes an image, or part of one: on the target platform."""
    return StagePackages(stage, below, platforms.target, tuple(packages))
