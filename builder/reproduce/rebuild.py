"""Images are built again without a layer from any cache, under names that go afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from builder.images.bases import ensure_bases_of
from builder.images.build import anew
from builder.images.log import BuildLog
from builder.images.names import build_labels
from builder.images.session import ActiveBuild
from builder.images.stages import build_stages, require_disk
from builder.plan import published_image
from builder.plan.rendered import BaseImage, EngineImage
from builder.tools.docker import containers
from builder.tools.docker import engine as docker
from builder.tools.files import workspace

NAMES = "builder-reproduce"
"""The repository of images that are built again, in the engine."""
OWNED = "__"  # before the parts of an owner; no stage, key or host name has it (RFC 1123, 2.1)
IMAGE = "image"  # the stage that is an engine's image


@contextmanager
def rebuilding(active: ActiveBuild, log: BuildLog) -> Iterator[Rebuilder]:
    """Builds images again; they go when the context ends, and first those of killed runs."""
    remove_orphans()
    rebuilder = Rebuilder(active, log)
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
    log: BuildLog
    names: list[str] = field(default_factory=list)
    """Of the images in the engine."""
    bases: dict[str, dict[str, docker.Image]] = field(default_factory=dict)
    """The images of the bases that were built again: by the base's name, and by stage."""

    def engine(self, image: EngineImage, *, with_bases: bool = False) -> docker.Image:
        """Build an engine, compiled without the compiler cache.

        On the bases that Docker has, or on ones built again.  Raises like ``build_stages``.
        """
        if with_bases:
            found: dict[str, docker.Image] = {}
            for base in image.bases():
                found = self.base(base) | found
        else:
            found = ensure_bases_of(image, self.active, self.log)
        runtime = found.get("runtime")
        if runtime is not None:  # the label has the name that the base has in Docker
            runtime = replace(runtime, reference=image.base_references["runtime"])
        options = anew(compiles=True, ccache=False)
        labels = build_labels(image, runtime)
        return self._built(image, {IMAGE: ""}, labels, found, options)[IMAGE]

    def base(self, image: BaseImage) -> dict[str, docker.Image]:
        """Build a base on the bases below it, built again; its images by stage.

        A published image stays what it is.  Raises like ``build_stages``.
        """
        name = image.plan.name
        if name not in self.bases:
            below = self.base(image.base) if image.base else self._published(image)
            options = anew(compiles=False)
            stages = image.plan.stages
            self.bases[name] = self._built(image, stages, image.labels, below, options)
        return self.bases[name]

    def _published(self, image: BaseImage) -> dict[str, docker.Image]:
        plan, options = image.plan, self.active.options
        published, root = plan.recipe.published, plan.published_root
        if published is None or root is None:
            return {}
        log, target = self.active.reporter.log, plan.platforms.target
        fetched = published_image.fetch(
            plan.name, published, root.digest, log, target=target, offline=options.offline
        )
        return {"published": fetched}

    def _built(
        self,
        image: EngineImage | BaseImage,
        stages: Mapping[str, str],
        labels: Mapping[str, str],
        below: Mapping[str, docker.Image],
        options: list[str],
    ) -> dict[str, docker.Image]:
        plan, active = image.plan, self.active
        owner = containers.owner()
        wanted = {stage: name_of(plan.name, stage, image.short_key, owner) for stage in stages}
        self.names += wanted.values()
        require_disk(active.options, plan.recipe.build.disk, f"the build of {plan.name}")
        active.reporter.log(f"building {plan.name} ({image.short_key}) without caches")
        with workspace(active.settings.cache_dir) as work:
            built = build_stages(image, wanted, labels, below, active, self.log, work, options)
        return {stage: each.image for stage, each in built.items()}
