"""What the builds of one command share: the recipes, the options, and the reporter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from builder.images.active import ActiveBuild, Progress
from builder.images.way import compiles_on
from builder.plan.base_image import RootPolicy
from builder.plan.plan import BasePlan, Plan
from builder.plan.resolver import Resolver
from builder.platforms import PLATFORMS, Platform
from builder.recipes.catalog import Catalog
from builder.settings import Settings
from builder.smoke.subject import GpuTest
from builder.smoke.verdict import Verdict


class Reporter(Progress, Protocol):
    """Receives the progress of a build, and the verdict on its image."""

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

    def active(self) -> ActiveBuild:
        """A new build of this session.

        One that builds again takes no layers of a registry's cache, for its bases neither: whoever
        can write an image that is to be compared may write those.
        """
        settings = self.settings
        if self.options.rebuild:
            settings = settings.model_copy(update={"layer_cache": ""})
        return ActiveBuild(settings, self.reporter, self.options.offline)

    def plans(self, name: str, build_architecture: str | None = None) -> tuple[Plan, ...]:
        """The plans of a recipe's images, one for each of its platforms, in the recipe's order.

        Only the one for the platform of the options, if they name one.  With ``build_architecture``
        neither engine nor registry is asked.  Raises ``RecipeError``, ``WorldError`` or
        ``FetchError``.
        """
        if self.options.platform is not None:
            return (self.resolve(name, build_architecture=build_architecture),)
        self.catalog.engine(name)  # reports a broken recipe also where no engine answers
        return self._resolver(build_architecture).plans(name)

    def resolve(
        self, name: str, platform: Platform | None = None, build_architecture: str | None = None
    ) -> Plan:
        """The plan of a recipe's image for one of its platforms.

        None: for the platform of the options, else for the only one.  Raises like ``plans``;
        ``RecipeError`` also where the recipe has no image for that platform, or several images and
        none is named.
        """
        self.catalog.engine(name)
        return self._resolver(build_architecture).resolve(name, platform or self.options.platform)

    def resolve_base(self, name: str) -> BasePlan:
        """The plan of a base, for the platform of the options, else for linux/amd64.

        Raises like ``plans``.
        """
        target = PLATFORMS[self.options.platform or "linux/amd64"]
        return self._resolver(None).resolve_base(name, target)

    def _resolver(self, build_architecture: str | None) -> Resolver:
        options, settings = self.options, self.settings
        ask = build_architecture is None
        policy = RootPolicy(settings.debian_root, self.log, ask=ask, offline=options.offline)
        build = compiles_on(settings, build_architecture)
        return Resolver(self.catalog, build, policy, settings.namespace)
