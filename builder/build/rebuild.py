"""Images are built again without a layer from any cache, under names that go afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from builder.build.stages import (
    ActiveBuild,
    anew,
    build_stages,
    ensure_bases_of,
    pulled_root,
    require_disk,
)
from builder.core.files import workspace
from builder.docker import containers
from builder.docker import engine as docker
from builder.plan.plan import AnyPlan, BasePlan, Plan

NAMES = "builder-reproduce"
"""The repository of images that are built again, in the engine."""
OWNED = "__"  # before the parts of an owner; no stage, key or host name has it (RFC 1123, 2.1)
IMAGE = "image"  # the stage that is an engine's image


@contextmanager
def rebuilding(active: ActiveBuild) -> Iterator[Rebuilder]:
    """A rebuilder; first the images of killed runs are removed, at the end its own."""
    remove_orphans()
    rebuilder = Rebuilder(active)
    try:
        yield rebuilder
    finally:
        for name in reversed(rebuilder.names):
            docker.untag(name)


def name_of(recipe: str, stage: str, key: str, owner: str) -> str:
    """The name of an image that is built again, with the ``containers.owner`` that builds it.

    A label would change the image's digest.  A tag has no colons.
    """
    return f"{NAMES}/{recipe}:{stage}-{key}{OWNED}{owner.replace(':', OWNED)}"


def remove_orphans() -> None:
    """Remove the images of runs on this host that were killed before they could do so."""
    for name in docker.image_names(f"{NAMES}/*"):
        _, _, owner = name.rpartition(":")[2].partition(OWNED)
        if containers.has_ended(":".join(owner.rsplit(OWNED, 2))):
            docker.untag(name)


@dataclass
class Rebuilder:
    """Builds images again, each once."""

    active: ActiveBuild
    names: list[str] = field(default_factory=list)
    """Names of the images in the engine."""
    bases: dict[str, dict[str, docker.Image]] = field(default_factory=dict)
    """The images of the bases that were built again: by the base's name, and by stage."""

    def engine(self, plan: Plan, *, with_bases: bool = False) -> docker.Image:
        """Build an engine, compiled without the compiler cache.

        On the bases that Docker has, or on ones built again.  Raises like ``build_stages``.
        """
        if with_bases:
            found: dict[str, docker.Image] = {}
            for base in plan.bases():
                found = self.base(base) | found
        else:
            found = ensure_bases_of(plan, self.active)
        return self._built(plan, found, anew(compiles=True, ccache=False))[IMAGE]

    def base(self, plan: BasePlan) -> dict[str, docker.Image]:
        """Build a base on the bases below it, built again; its images by stage.

        A published image is taken unchanged.  Raises like ``build_stages``.
        """
        name = plan.name
        if name not in self.bases:
            below = self.base(plan.base) if plan.base else pulled_root(plan, self.active)
            self.bases[name] = self._built(plan, below, anew(compiles=False))
        return self.bases[name]

    def _built(
        self, plan: AnyPlan, below: Mapping[str, docker.Image], options: list[str]
    ) -> dict[str, docker.Image]:
        active, owner = self.active, containers.owner()
        wanted = {stage: name_of(plan.name, stage, plan.short_key, owner) for stage in plan.stages}
        self.names += wanted.values()
        require_disk(active.settings, plan.recipe.build.disk, f"the build of {plan.name}")
        active.progress.log(f"building {plan.name} ({plan.short_key}) without caches")
        with workspace(active.settings.cache_dir) as work:
            return build_stages(plan, wanted, below, active, work, options)
