"""The images of a base: those that the engine lacks are built, published ones are pulled."""

from __future__ import annotations

from functools import partial

from builder.errors import FetchError
from builder.images.active import ActiveBuild
from builder.images.log import BuildLog
from builder.images.stages import build_stages, fetch_files, require_disk
from builder.plan import published_image
from builder.plan.base_image import in_engine
from builder.plan.inputs import RegistryRoot
from builder.plan.plan import BasePlan, Plan
from builder.tools.beside import beside
from builder.tools.docker import engine as docker
from builder.tools.files import named_lock, workspace


def ensure_bases_of(plan: Plan, active: ActiveBuild, log: BuildLog) -> dict[str, docker.Image]:
    """The images that an engine's stages begin with, by stage.  Raises like ``ensure_bases``."""
    found: dict[str, docker.Image] = {}
    for base in plan.bases():
        found = ensure_bases(base, active, log) | found
    return found


def ensure_bases(base: BasePlan, active: ActiveBuild, log: BuildLog) -> dict[str, docker.Image]:
    """Build the images that the engine lacks of a base and of those below it; all, by stage.

    The files of a base are fetched while the one below it is built.  Raises like ``build_stages``;
    ``FetchError`` where they would have to be built offline.
    """
    if base.base is None:
        return _ensured(base, {}, active, log)
    with beside() as other:
        if len(_found(base)) < len(base.references):
            other.begin(partial(fetch_files, base, active))
        below = ensure_bases(base.base, active, log)
        other.wait()
    return _ensured(base, below, active, log)


def _ensured(
    base: BasePlan, below: dict[str, docker.Image], active: ActiveBuild, log: BuildLog
) -> dict[str, docker.Image]:
    """Build the images that the engine lacks of a base; ``below`` are the images of the base below
    it."""
    name, found = base.name, _found(base)
    if len(found) == len(base.references):
        return found
    cache, log_line = active.settings.cache_dir, active.progress.log
    with named_lock(cache, f"base-{name}", wait=log_line):
        found = _found(base)  # another run may have built them meanwhile
        missing = {stage: name for stage, name in base.references.items() if stage not in found}
        if not missing:
            return found
        if active.offline and base.recipe.published is None:
            _require_mirrored(base)
        require_disk(active.settings, base.recipe.build.disk, f"the base {name}")
        log_line(f"building the base {name} ({base.short_key})")
        published, root = base.recipe.published, base.published_root
        if published is not None and root is not None:
            target, offline = base.platforms.target, active.offline
            image = published_image.fetch(
                name, published, root.digest, log_line, target=target, offline=offline
            )
            below = {"published": image}
        with workspace(cache) as work:
            built = build_stages(base, missing, base.labels, below, active, log, work)
    return found | {stage: each.image for stage, each in built.items()}


def _require_mirrored(base: BasePlan) -> None:
    """Raise ``FetchError`` where a base cannot be built offline; its files may still be missing."""
    from_registry = isinstance(base.root, RegistryRoot) and base.base is None
    if base.debian.locked and not from_registry:
        return
    why = "it starts from a registry's image" if from_registry else "its packages have no lock"
    raise FetchError(
        f"the base {base.name} ({base.short_key}) is not in Docker",
        f"{why}, and nothing is fetched (--offline)",
        "build it once with a network",
    )


def _found(base: BasePlan) -> dict[str, docker.Image]:
    """The images of a base that the engine has, by stage."""
    asked = ((stage, in_engine(base, stage)) for stage in base.references)
    return {stage: image for stage, image in asked if image is not None}
