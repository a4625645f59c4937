"""The stages of a plan become images: inputs gathered, the context assembled, buildx started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.errors import WorldError
from builder.images import build as image_build
from builder.images import context
from builder.images.build import Built
from builder.images.log import BuildLog
from builder.images.session import ActiveBuild, BuildOptions
from builder.plan.rendered import BaseImage, EngineImage
from builder.smoke.contents import ExtendedImage
from builder.sources import gather
from builder.tools.docker import buildx
from builder.tools.docker import engine as docker
from builder.tools.files import require_space
from builder.tools.log import Log


def require_disk(options: BuildOptions, gib: float, what: str) -> None:
    """Raise ``SpaceError`` where the engine compiles, and has too little disk."""
    if buildx.builder(options.settings.buildx).is_engine:
        require_space(docker.engine().root, gib, what)


def build_stages(
    image: EngineImage | BaseImage,
    references: Mapping[str, str],
    labels: Mapping[str, str],
    base_images: Mapping[str, docker.Image],
    active: ActiveBuild,
    log: BuildLog,
    work: Path,
) -> dict[str, Built]:
    """Gather a plan's inputs and build the stages that ``references`` names.

    ``base_images`` are those of its base, by stage; ``work`` is an empty directory.
    """
    plan, options, reporter = image.plan, active.options, active.reporter
    builder = buildx.builder(options.settings.buildx)
    with active.seconds.stage(f"fetch {plan.name}"):
        names = {stage: base.reference for stage, base in base_images.items()}
        runs_scripts = names.get("devel") or names.get("runtime")
        bases = context.bases_at(names, work, seen=builder.is_engine)
        base = base_images.get("runtime")
        extended = extended_image(image, base) if isinstance(image, EngineImage) else None
        config = extended.config if extended else None
        laid_out = lay_out(image, options, bases, config, runs_scripts, work, reporter.log)
    with active.seconds.stage(f"build {plan.name}"):
        built = {
            stage: image_build.build(
                laid_out,
                stage,
                reference,
                labels,
                log,
                reporter.on_progress,
                builder,
                compression=plan.stages[stage],
                cache=layer_cache(image, options, stage),
                rebuild=options.rebuild and isinstance(image, EngineImage),
            )
            for stage, reference in references.items()
        }
    if log.not_kept:
        where = options.settings.layer_cache
        reporter.log(f"the layers are not kept in {where}: {log.not_kept}")
        log.not_kept = ""
    return built


def lay_out(
    image: EngineImage | BaseImage,
    options: BuildOptions,
    bases: Mapping[str, str],
    inherited: Mapping[str, Any] | None,
    runs_scripts: str | None,
    work: Path,
    log: Log,
) -> context.Context:
    """Gather a plan's inputs and assemble its context below the empty directory ``work``.

    ``bases`` says where the images of its base are, ``inherited`` is the configuration of the image
    that it extends (None: of nothing), ``runs_scripts`` an image of the engine that scripts of
    patches run in.  Raises like ``gather.gather``.
    """
    config = inherited or {}
    starts = {"entrypoint": config.get("Entrypoint") or [], "command": config.get("Cmd") or []}
    cache = options.settings.cache_dir
    materials = gather.GatherOptions(cache, log, runs_scripts, options.offline, starts)
    sources = gather.gather(image.plan, image.suite(), materials, work)
    arguments = {} if inherited is None else {"BASE_USER": config.get("User") or "root"}
    return context.assemble(image, sources, bases, options.settings.jobs, work, arguments)


def layer_cache(image: EngineImage | BaseImage, options: BuildOptions, stage: str) -> str:
    """Where the layers of a stage are kept on a registry; empty: nowhere.

    An image that extends a published one is built in seconds, and would take all of that image
    along.  The layers of a rebuild are found by no other build.
    """
    plan = image.plan
    if isinstance(image, EngineImage):
        useless = image.plan.family.extends_base or options.rebuild
    else:
        useless = image.plan.recipe.published is not None
    if not options.settings.layer_cache or options.offline or useless:
        return ""
    suffix = "" if stage == "image" else f"-{stage}"
    return f"{options.settings.layer_cache}:{plan.name}{suffix}"


def extended_image(image: EngineImage, base: docker.Image | None = None) -> ExtendedImage | None:
    """The image of the engine that an image extends; None where it extends none.

    The engine is asked for it where ``base`` is None.  Raises ``WorldError`` where it does not have
    it.
    """
    if not image.plan.family.extends_base:
        return None
    name = image.base.references["runtime"]
    found = base or docker.image(name)
    if found is None:
        raise WorldError(
            f"Docker does not have the base of {image.plan.name}",
            f"looked for {name}",
            f"build it: `builder build {image.plan.name}`",
        )
    return ExtendedImage(found.layers, found.config)
