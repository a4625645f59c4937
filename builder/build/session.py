"""A command's builds have one session: the recipes, the options, and the reporter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from builder.build.log import new_log
from builder.build.roots import resolver_of
from builder.build.stages import ActiveBuild, Progress
from builder.core.platforms import PLATFORMS, Platform
from builder.core.settings import Settings
from builder.plan.plan import BasePlan, Plan
from builder.plan.resolver import Resolver
from builder.recipes.catalog import Catalog

if TYPE_CHECKING:
    from builder.checks.subject import GpuTest
    from builder.checks.verdict import Verdict


class Reporter(Progress, Protocol):
    """Receives the progress of a build, and the verdict on its image."""

    def on_verdict(self, name: str, verdict: Verdict, /) -> None:
        """The verdict on an image, good or not, before anything follows from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSession:
    """The recipes, the options and the reporter of all builds of one command."""

    catalog: Catalog
    settings: Settings
    reporter: Reporter
    gpu_test: GpuTest | None = None
    """The checks on a GPU; None: there are none."""
    card: str | None = None
    """The simulated card of the checks on one; None: the smallest that runs the recipe's code."""
    simulated: bool = True
    """Start the engine on simulated cards."""
    rebuild: bool = False
    """Build an image that exists."""
    platform: Platform | None = None
    """The platform of the image of a recipe; None: of the only one, or of all images."""
    offline: bool = False
    """Fetch nothing: an input that is neither mirrored nor cached is an error."""

    def log(self, line: str) -> None:
        """Report a line for the user."""
        self.reporter.log(line)

    @contextmanager
    def active(self, name: str) -> Iterator[ActiveBuild]:
        """A new build of this session, with a log of that name.

        One that builds again takes no layers of a registry's cache, for its bases neither: whoever
        can write an image that is to be compared may write those.
        """
        settings = self.settings
        if self.rebuild:
            settings = settings.model_copy(update={"layer_cache": ""})
        with new_log(settings.state_dir, name) as log:
            yield ActiveBuild(settings, self.reporter, log, self.offline)

    def plans(self, name: str) -> tuple[Plan, ...]:
        """The plans of a recipe's images, one for each of its platforms, in the recipe's order.

        Only the one for the platform of the options, if they name one.  Raises ``RecipeError``,
        ``WorldError`` or ``FetchError``.
        """
        self.catalog.engine(name)  # reports a broken recipe also where no engine answers
        return self._resolver().plans(name, self.platform)

    def resolve(self, name: str, platform: Platform | None = None) -> Plan:
        """The plan of a recipe's image for one of its platforms.

        None: for the platform of the options, else for the only one.  Raises like ``plans``;
        ``RecipeError`` also where the recipe has no image for that platform, or several images and
        none is named.
        """
        self.catalog.engine(name)
        return self._resolver().resolve(name, platform or self.platform)

    def resolve_base(self, name: str) -> BasePlan:
        """The plan of a base, for the platform of the options, else for linux/amd64.

        Raises like ``plans``.
        """
        return self._resolver().resolve_base(name, PLATFORMS[self.platform or "linux/amd64"])

    def _resolver(self) -> Resolver:
        return resolver_of(self.catalog, self.settings, self.log, offline=self.offline)
