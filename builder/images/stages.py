"""The stages of a plan become images: inputs gathered, the context assembled, buildx started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import WorldError
from builder.images import build as image_build
from builder.images import context
from builder.images.build import Built
from builder.images.log import BuildLog
from builder.images.session import ActiveBuild, BuildOptions
from builder.plan import published_image
from builder.plan.inputs import BasePlan, RegistryRoot
from builder.plan.rendered import BaseImage, EngineImage
from builder.publish.remote_image import CREATED
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
    anew: Sequence[str] = (),
) -> dict[str, Built]:
    """Gather a plan's inputs and build the stages that ``references`` names.

    ``base_images`` are those of its base, by stage; ``work`` is an empty directory; ``anew`` is as
    in ``image_build.build``, and no layer is kept on a registry then.
    """
    plan, options, reporter = image.plan, active.options, active.reporter
    builder = buildx.builder(options.settings.buildx)
    with active.seconds.stage(f"fetch {plan.name}"):
        names = {stage: base.reference for stage, base in base_images.items()}
        own = image.base.references if isinstance(image, EngineImage) else base_images
        epoch = max((each.epoch for stage, each in base_images.items() if stage in own), default=0)
        runs_scripts = names.get("devel") or names.get("runtime")
        bases = context.bases_at(names, work, seen=builder.is_engine)
        base = base_images.get("runtime")
        extended = extended_image(image, base) if isinstance(image, EngineImage) else None
        config = extended.config if extended else None
        below = Below(config, epoch)
        laid_out = lay_out(image, options, bases, below, runs_scripts, work, reporter.log)
    if isinstance(image, EngineImage):
        labels = {**labels, CREATED: laid_out.created}
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
                compress_base=isinstance(image, EngineImage) and compresses_base(image),
                cache=layer_cache(image, options, stage, anew=bool(anew)),
                anew=anew,
            )
            for stage, reference in references.items()
        }
    if log.not_kept:
        where = options.settings.layer_cache
        reporter.log(f"the layers are not kept in {where}: {log.not_kept}")
        log.not_kept = ""
    return built


@dataclass(frozen=True, slots=True)
class Below:
    """What an image takes from those below it."""

    config: Mapping[str, Any] | None = None
    """The configuration of the image that it extends; None: it extends none."""
    epoch: int = 0
    """When the newest was created, in seconds since 1970; only those of a registry are newer than
    the plan."""


def lay_out(
    image: EngineImage | BaseImage,
    options: BuildOptions,
    bases: Mapping[str, str],
    below: Below,
    runs_scripts: str | None,
    work: Path,
    log: Log,
) -> context.Context:
    """Gather a plan's inputs and assemble its context below the empty directory ``work``.

    ``bases`` says where the images of its base are, ``runs_scripts`` is an image of the engine that
    scripts of patches run in.  Raises like ``gather.gather``.
    """
    config = below.config or {}
    epoch = max(image.plan.epoch, below.epoch, _of_registry(image, options))
    starts = {"entrypoint": config.get("Entrypoint") or [], "command": config.get("Cmd") or []}
    cache, servers = options.settings.cache_dir, options.settings.debian_servers
    materials = gather.GatherOptions(
        cache, log, runs_scripts, options.offline, servers, starts, epoch
    )
    sources = gather.gather(image.plan, image.suite(), materials, work)
    arguments = {} if below.config is None else {"BASE_USER": config.get("User") or "root"}
    return context.assemble(image, sources, bases, options.settings.jobs, work, arguments)


def _of_registry(image: EngineImage | BaseImage, options: BuildOptions) -> int:
    """When the registry's image was created that a Debian root starts from; 0: it starts from none.

    In seconds since 1970.  Raises ``FetchError`` where it is not known.
    """
    plan = image.plan
    if not isinstance(plan, BasePlan) or plan.recipe.root is None:
        return 0
    if not isinstance(plan.root, RegistryRoot):
        return 0
    target, offline = plan.platforms.target, options.offline
    return published_image.config(plan.root, target, offline=offline)[1]


def compresses_base(image: EngineImage) -> bool:
    """Whether the layers of its base are compressed anew: those of bases are gzip, and those of a
    published image stay as they are, because people have them already."""
    published = any(base.plan.recipe.published is not None for base in image.base.chain())
    return image.plan.stages["image"] != "gzip" and not published


def layer_cache(
    image: EngineImage | BaseImage, options: BuildOptions, stage: str, *, anew: bool = False
) -> str:
    """Where the layers of a stage are kept on a registry; empty: nowhere.

    An image that extends a published one is built in seconds, and would take all of that image
    along.  The layers of a build without caches (``anew``) are found by no other build.
    """
    plan = image.plan
    if isinstance(image, EngineImage):
        useless = image.plan.family.extends_base
    else:
        useless = image.plan.recipe.published is not None
    if not options.settings.layer_cache or options.offline or useless or anew:
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
