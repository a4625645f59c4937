"""The images of a base: those that the engine lacks are built, published ones are pulled."""

from __future__ import annotations

from builder.errors import FetchError
from builder.images.log import BuildLog
from builder.images.session import ActiveBuild
from builder.images.stages import build_stages, require_disk
from builder.plan import published_image
from builder.plan.base_image import in_engine
from builder.plan.inputs import RegistryRoot
from builder.plan.rendered import BaseImage, EngineImage
from builder.tools.docker import engine as docker
from builder.tools.files import named_lock, workspace


def ensure_bases_of(
    image: EngineImage, active: ActiveBuild, log: BuildLog
) -> dict[str, docker.Image]:
    """The images that an engine's stages begin with, by stage.  Raises like ``ensure_bases``."""
    found: dict[str, docker.Image] = {}
    for base in image.bases():
        found = ensure_bases(base, active, log) | found
    return found


def ensure_bases(base: BaseImage, active: ActiveBuild, log: BuildLog) -> dict[str, docker.Image]:
    """Build the images that the engine lacks of a base and of those below it; all, by stage.

    Raises like ``build_stages``; ``FetchError`` where they would have to be built offline.
    """
    below = ensure_bases(base.base, active, log) if base.base else {}
    name, found = base.plan.name, _found(base)
    if len(found) == len(base.references):
        return found
    cache, options, reporter = active.settings.cache_dir, active.options, active.reporter
    with named_lock(cache, f"base-{name}", wait=reporter.log):
        found = _found(base)  # another run may have built them meanwhile
        missing = {stage: name for stage, name in base.references.items() if stage not in found}
        if not missing:
            return found
        if options.offline and base.plan.recipe.published is None:
            _require_mirrored(base)
        require_disk(options, base.plan.recipe.build.disk, f"the base {name}")
        reporter.log(f"building the base {name} ({base.short_key})")
        published, root = base.plan.recipe.published, base.plan.published_root
        if published is not None and root is not None:
            target, offline = base.plan.platforms.target, options.offline
            image = published_image.fetch(
                name, published, root.digest, reporter.log, target=target, offline=offline
            )
            below = {"published": image}
        with workspace(cache) as work:
            built = build_stages(base, missing, base.labels, below, active, log, work)
    return found | {stage: each.image for stage, each in built.items()}


def _require_mirrored(base: BaseImage) -> None:
    """Raise ``FetchError`` where a base cannot be built offline; its files may still be missing."""
    plan = base.plan
    from_registry = isinstance(plan.root, RegistryRoot) and plan.base is None
    if plan.debian.locked and not from_registry:
        return
    why = "it starts from a registry's image" if from_registry else "its packages have no lock"
    raise FetchError(
        f"the base {plan.name} ({base.short_key}) is not in Docker",
        f"{why}, and nothing is fetched (--offline)",
        "build it once with a network",
    )


def _found(base: BaseImage) -> dict[str, docker.Image]:
    """The images of a base that the engine has, by stage."""
    asked = ((stage, in_engine(base, stage)) for stage in base.references)
    return {stage: image for stage, image in asked if image is not None}
