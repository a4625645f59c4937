"""How images are built: the options, the reporter, and the seconds of each stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from builder.errors import WorldError
from builder.images.log import Step
from builder.plan.base_image import RootPolicy
from builder.plan.rendered import BaseImage, EngineImage
from builder.plan.resolver import Resolver
from builder.platforms import PLATFORMS, Architecture, Platform, architecture
from builder.recipes.catalog import Catalog
from builder.settings import Settings
from builder.smoke.gpu import GpuTest
from builder.smoke.verdict import Verdict
from builder.tools.docker import buildx


class Reporter(Protocol):
    """Receives the progress of a build."""

    def log(self, line: str, /) -> None:
        """A line for the user."""

    def on_progress(self, progress: Step | str, /) -> None:
        """A step of a compile, or any other line of BuildKit's progress."""

    def on_verdict(self, name: str, verdict: Verdict, /) -> None:
        """The verdict on an image, good or not, before anything follows from it."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The user's settings, and the options of one command."""

    settings: Settings
    gpu_test: GpuTest | None = None
    """The checks on a GPU; None: there are none."""
    card: str | None = None
    """The simulated card of the checks on one; None: the smallest that runs the recipe's code."""
    rebuild: bool = False
    """Build an image that exists."""
    platform: Platform | None = None
    """The platform of the image of a recipe; None: of the only one, or of all images."""
    offline: bool = False
    """Fetch nothing: an input that is neither mirrored nor cached is an error."""

    def compiles_on(self, build_architecture: str | None = None) -> Architecture:
        """The architecture that compiles; without ``build_architecture``, that of the builder.

        The setting ``compile_on`` comes before both.  Raises ``WorldError`` where the builder does
        not answer, or its machine cannot compile.
        """
        settings = self.settings
        machine = settings.compile_on or build_architecture
        machine = machine or buildx.builder(settings.buildx).architecture
        found = architecture(machine)
        if found is None:
            raise WorldError(f"builder does not compile on {machine}", hint="use amd64 or arm64")
        return found


@dataclass(frozen=True, slots=True)
class BuildSession:
    """What all builds of one command share: the recipes, the options and the reporter."""

    catalog: Catalog
    options: BuildOptions
    reporter: Reporter

    @property
    def settings(self) -> Settings:
        """The user's settings."""
        return self.options.settings

    def log(self, line: str) -> None:
        """Report a line for the user."""
        self.reporter.log(line)

    def images(self, name: str, build_architecture: str | None = None) -> tuple[EngineImage, ...]:
        """The images of a recipe, one for each of its platforms, in the recipe's order.

        Only the one for the platform of the options, if they name one.  With ``build_architecture``
        neither engine nor registry is asked.  Raises ``RecipeError``, ``WorldError`` or
        ``FetchError``.
        """
        if self.options.platform is not None:
            return (self.resolve(name, build_architecture=build_architecture),)
        self.catalog.engine(name)  # reports a broken recipe also where no engine answers
        return self._resolver(build_architecture).images(name)

    def resolve(
        self, name: str, platform: Platform | None = None, build_architecture: str | None = None
    ) -> EngineImage:
        """The image of a recipe for one of its platforms.

        None: for the platform of the options, else for the only one.  Raises like ``images``;
        ``RecipeError`` also where the recipe has no image for that platform, or several images and
        none is named.
        """
        self.catalog.engine(name)
        return self._resolver(build_architecture).resolve(name, platform or self.options.platform)

    def resolve_base(self, name: str) -> BaseImage:
        """The images of a base, for the platform of the options, else for linux/amd64.

        Raises like ``images``.
        """
        target = PLATFORMS[self.options.platform or "linux/amd64"]
        return self._resolver(None).resolve_base(name, target)

    def _resolver(self, build_architecture: str | None) -> Resolver:
        options, settings = self.options, self.settings
        ask = build_architecture is None
        policy = RootPolicy(settings.debian_root, self.log, ask=ask, offline=options.offline)
        build = options.compiles_on(build_architecture)
        return Resolver(self.catalog, build, policy, settings.namespace)


class Timings(dict[str, float]):
    """The seconds of each stage of a build, by its name."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage, also one that fails."""
        started = time.monotonic()
        try:
            yield
        finally:
            self[name] = round(time.monotonic() - started, 2)


@dataclass(frozen=True, slots=True)
class ActiveBuild:
    """One build at work: its options, its reporter, and the seconds of its stages so far."""

    options: BuildOptions
    reporter: Reporter
    seconds: Timings = field(default_factory=Timings)

    @property
    def settings(self) -> Settings:
        """The user's settings."""
        return self.options.settings
