"""The stages of a plan become images: inputs gathered, the context assembled, buildx started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from builder.families.layout import CREATED
from builder.images import build as image_build
from builder.images import context
from builder.images.active import ActiveBuild
from builder.images.build import Built
from builder.images.extended import extended_image
from builder.images.log import BuildLog, Step
from builder.plan import published_image
from builder.plan.inputs import RegistryRoot
from builder.plan.plan import BasePlan, Plan
from builder.settings import Settings
from builder.sources import gather
from builder.tools.beside import beside
from builder.tools.docker import buildx
from builder.tools.docker import engine as docker
from builder.tools.files import require_space

OnProgress = Callable[[Step | str], None]


def require_disk(settings: Settings, gib: float, what: str) -> None:
    """Raise ``SpaceError`` where the engine compiles, and has too little disk."""
    if buildx.builder(settings.buildx).is_engine:
        require_space(docker.engine().root, gib, what)


def fetch_files(base: BasePlan, active: ActiveBuild) -> None:
    """Fetch a base's files into the cache, where its build finds them.  Raises ``FetchError``."""
    gather.fetch(base, _materials(active))


def _materials(active: ActiveBuild) -> gather.GatherOptions:
    """Where inputs are gathered."""
    cache, servers = active.settings.cache_dir, active.settings.debian_servers
    return gather.GatherOptions(cache, active.progress.log, offline=active.offline, debian=servers)


def build_stages(
    plan: Plan | BasePlan,
    references: Mapping[str, str],
    labels: Mapping[str, str],
    base_images: Mapping[str, docker.Image],
    active: ActiveBuild,
    log: BuildLog,
    work: Path,
    anew: Sequence[str] = (),
) -> dict[str, Built]:
    """Gather a plan's inputs and build the stages that ``references`` names.

    ``base_images`` are its base's images, by stage; ``work`` is an empty directory; ``anew`` is as
    in ``image_build.build``, and no layer is kept on a registry then.
    """
    builder = buildx.builder(active.settings.buildx)
    with active.seconds.stage(f"fetch {plan.name}"):
        names = {stage: base.reference for stage, base in base_images.items()}
        own = plan.base.references if isinstance(plan, Plan) else base_images
        epoch = max((each.epoch for stage, each in base_images.items() if stage in own), default=0)
        runs_scripts = names.get("devel") or names.get("runtime")
        bases = context.bases_at(names, work, seen=builder.is_engine)
        base = base_images.get("runtime")
        extended = extended_image(plan, base) if isinstance(plan, Plan) else None
        config = extended.config if extended else None
        below = Below(config, epoch)
        laid_out = lay_out(plan, active, bases, below, runs_scripts, work)
    if isinstance(plan, Plan):
        labels = {**labels, CREATED: laid_out.created}
    with active.seconds.stage(f"build {plan.name}"), beside() as other:

        def built_stage(stage: str, log: BuildLog, on_progress: OnProgress, /) -> Built:
            return image_build.build(
                laid_out,
                stage,
                references[stage],
                labels,
                log,
                on_progress,
                builder,
                compression=plan.stages[stage],
                compress_base=isinstance(plan, Plan) and compresses_base(plan),
                cache=layer_cache(plan, active, stage, anew=bool(anew)),
                anew=anew,
            )

        def prepare(stage: str) -> None:
            with closing(BuildLog(work / f"{stage}.log")) as aside:
                built_stage(stage, aside, lambda _: None)

        first, *others = references
        # So that its steps are cached when its turn comes: without a cache, and for an image that
        # is transferred from another builder, the work would be done twice.
        for stage in others if builder.is_engine and not anew else ():
            other.begin(partial(prepare, stage))
        built = {first: built_stage(first, log, active.progress.on_progress)}
        other.wait()
        built |= {stage: built_stage(stage, log, active.progress.on_progress) for stage in others}
    if log.not_kept:
        where = active.settings.layer_cache
        active.progress.log(f"the layers are not kept in {where}: {log.not_kept}")
        log.not_kept = ""
    return built


@dataclass(frozen=True, slots=True)
class Below:
    """What an image takes from those below it."""

    config: Mapping[str, Any] | None = None
    """The configuration of the image that it extends; None: it extends none."""
    epoch: int = 0
    """When the newest was created, in seconds since 1970; only images of a registry are newer than
    the plan."""


def lay_out(
    plan: Plan | BasePlan,
    active: ActiveBuild,
    bases: Mapping[str, str],
    below: Below,
    runs_scripts: str | None,
    work: Path,
) -> context.Context:
    """Gather a plan's inputs and assemble its context below the empty directory ``work``.

    ``bases`` says where the images of its base are, ``runs_scripts`` is an image of the engine that
    scripts of patches run in.  Raises like ``gather.gather``.
    """
    config = below.config or {}
    epoch = max(plan.epoch, below.epoch, _of_registry(plan, offline=active.offline))
    starts = {"entrypoint": config.get("Entrypoint") or [], "command": config.get("Cmd") or []}
    materials = replace(_materials(active), image=runs_scripts, base_start=starts, epoch=epoch)
    sources = gather.gather(plan, plan.suite, materials, work)
    arguments = {} if below.config is None else {"BASE_USER": config.get("User") or "root"}
    return context.assemble(plan, sources, bases, active.settings.jobs, work, arguments)


def _of_registry(plan: Plan | BasePlan, *, offline: bool) -> int:
    """When the registry's image was created that a Debian root starts from; 0: it starts from none.

    In seconds since 1970.  Raises ``FetchError`` where it is not known.
    """
    if not isinstance(plan, BasePlan) or plan.recipe.root is None:
        return 0
    if not isinstance(plan.root, RegistryRoot):
        return 0
    return published_image.config(plan.root, plan.platforms.target, offline=offline)[1]


def compresses_base(plan: Plan) -> bool:
    """Whether the layers of its base are compressed anew: a base's layers are gzip, and layers of a
    published image stay as they are, because people have them already."""
    published = any(base.recipe.published is not None for base in plan.base.chain())
    return plan.stages["image"] != "gzip" and not published


def layer_cache(
    plan: Plan | BasePlan, active: ActiveBuild, stage: str, *, anew: bool = False
) -> str:
    """Where the layers of a stage are kept on a registry; empty: nowhere.

    An image that extends a published one is built in seconds, and would take all of that image
    along.  The layers of a build without caches (``anew``) are found by no other build.
    """
    if isinstance(plan, Plan):
        useless = plan.family.extends_base
    else:
        useless = plan.recipe.published is not None
    if not active.settings.layer_cache or active.offline or useless or anew:
        return ""
    suffix = "" if stage == "image" else f"-{stage}"
    return f"{active.settings.layer_cache}:{plan.name}{suffix}"
