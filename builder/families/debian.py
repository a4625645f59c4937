"""Which Debian packages the stages of a base or of an engine's image install."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.platforms import Architecture, Platforms


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

    @property
    def key(self) -> tuple[str, str, str | None]:
        """The key by which an install of a lock is found."""
        return self.stage, self.architecture, self.foreign


def compiling(
    stage: str, below: str, packages: Sequence[str], platforms: Platforms
) -> StagePackages:
    """A stage that compiles: on the build platform, also with libraries of the target."""
    foreign = platforms.target if platforms.cross else None
    return StagePackages(stage, below, platforms.build, tuple(packages), foreign)


def running(stage: str, below: str, packages: Sequence[str], platforms: Platforms) -> StagePackages:
    """A stage that becomes an image, or part of one: on the target platform."""
    return StagePackages(stage, below, platforms.target, tuple(packages))
