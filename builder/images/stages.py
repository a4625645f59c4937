"""The stages of a plan become images: inputs gathered, the context laid out, buildx started.

The images of a base that the engine lacks are built first; published ones are pulled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from builder.errors import FetchError, WorldError
from builder.images import build as image_build
from builder.images import roots
from builder.images.log import BuildLog, BuildStep, Timings, build_stage
from builder.images.roots import in_engine
from builder.plan.inputs import RegistryRoot
from builder.plan.plan import AnyPlan, BasePlan, Plan
from builder.settings import Settings
from builder.sources import gather
from builder.sources.context import BuildContext
from builder.tools.beside import beside
from builder.tools.docker import buildx
from builder.tools.docker import engine as docker
from builder.tools.docker.blobs import build_contexts
from builder.tools.files import named_lock, require_space, workspace

OnProgress = Callable[[BuildStep | str], None]


class Progress(Protocol):
    """Receives the progress of a build."""

    def log(self, line: str, /) -> None:
        """A line for the user."""

    def on_progress(self, progress: BuildStep | str, /) -> None:
        """A step of a compile, or any other line of BuildKit's progress."""


@dataclass(frozen=True, slots=True)
class ActiveBuild:
    """One build at work: its settings and log, who hears of its progress, and its times."""

    settings: Settings
    progress: Progress
    log: BuildLog
    offline: bool = False
    """Fetch nothing: an input that is neither mirrored nor cached is an error."""
    seconds: Timings = field(default_factory=Timings)


def require_disk(settings: Settings, gib: float, what: str) -> None:
    """Raise ``SpaceError`` where the engine compiles, and has too little disk."""
    if buildx.builder(settings.buildx).is_engine:
        require_space(docker.engine().root, gib, what)


def ensure_bases_of(plan: Plan, active: ActiveBuild) -> dict[str, docker.Image]:
    """The images that an engine's stages begin with, by stage.

    Before minutes of work on a base, the commits of the engine are fetched.  Raises like
    ``ensure_bases`` and ``gather.fetch_commits``.
    """
    if any(len(_found(base)) < len(base.references) for base in plan.bases()):
        gather.fetch_commits(plan, _options(active))
    found: dict[str, docker.Image] = {}
    for base in plan.bases():
        found = ensure_bases(base, active) | found
    return found


def ensure_bases(base: BasePlan, active: ActiveBuild) -> dict[str, docker.Image]:
    """Build the images that the engine lacks of a base and of those below it; all, by stage.

    The files of a base are fetched while the one below it is built.  Raises like ``build_stages``;
    ``FetchError`` where they would have to be built offline.
    """
    if base.base is None:
        return _ensured(base, {}, active)
    with beside() as other:
        if len(_found(base)) < len(base.references):
            other.begin(partial(gather.fetch, base, _options(active)))
        below = ensure_bases(base.base, active)
        other.wait()
    return _ensured(base, below, active)


def _ensured(
    base: BasePlan, below: dict[str, docker.Image], active: ActiveBuild
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
        below = below or pulled_root(base, active)
        with workspace(cache) as work:
            return found | build_stages(base, missing, below, active, work)


def pulled_root(base: BasePlan, active: ActiveBuild) -> dict[str, docker.Image]:
    """The published image that a base starts from, pulled; empty: it starts from none.

    Raises ``FetchError`` where it cannot be had.
    """
    published, root = base.recipe.published, base.published_root
    if published is None or root is None:
        return {}
    log, target, offline = active.progress.log, base.platforms.target, active.offline
    found = roots.fetch(base.name, published, root.digest, log, target=target, offline=offline)
    return {"published": found}


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
    asked = ((stage, in_engine(base, name)) for stage, name in base.references.items())
    return {stage: image for stage, image in asked if image is not None}


def build_stages(
    plan: AnyPlan,
    references: Mapping[str, str],
    base_images: Mapping[str, docker.Image],
    active: ActiveBuild,
    work: Path,
    anew: Sequence[str] = (),
) -> dict[str, docker.Image]:
    """Gather a plan's inputs and build the stages that ``references`` names; the images, by stage.

    ``base_images`` are its base's images, by stage; ``work`` is an empty directory; ``anew`` is as
    in ``image_build.build``, and no layer is kept on a registry then.
    """
    builder = buildx.builder(active.settings.buildx)
    with active.seconds.stage(f"fetch {plan.name}"):
        laid_out = lay_out(plan, base_images, active, work)
    runtime = base_images.get("runtime")
    labels = plan.labels_of(laid_out.created, runtime.digest if runtime else "")
    with active.seconds.stage(build_stage(plan.name)), beside() as other:

        def built_stage(stage: str, log: BuildLog, on_progress: OnProgress, /) -> docker.Image:
            return image_build.build(
                laid_out,
                stage,
                references[stage],
                labels,
                log,
                on_progress,
                builder,
                compression=plan.stages[stage],
                compress_base=plan.compresses_base,
                cache=layer_cache(plan, stage, active, anew=bool(anew)),
                anew=anew,
            )

        def prepare(stage: str) -> None:
            with closing(BuildLog(work / f"{stage}.log")) as aside:
                built_stage(stage, aside, lambda _: None)

        log, on_progress = active.log, active.progress.on_progress
        first, *others = references
        # So that its steps are cached when its turn comes: without a cache, and for an image that
        # is transferred from another builder, the work would be done twice.
        for stage in others if builder.is_engine and not anew else ():
            other.begin(partial(prepare, stage))
        built = {first: built_stage(first, log, on_progress)}
        other.wait()
        built |= {stage: built_stage(stage, log, on_progress) for stage in others}
    if log.not_kept:
        where = active.settings.layer_cache
        active.progress.log(f"the layers are not kept in {where}: {log.not_kept}")
        log.not_kept = ""
    return built


def lay_out(
    plan: AnyPlan, base_images: Mapping[str, docker.Image], active: ActiveBuild, work: Path
) -> BuildContext:
    """Gather a plan's inputs into a build context, below the empty directory ``work``.

    Raises like ``gather.gather``.
    """
    names = {stage: base.reference for stage, base in base_images.items()}
    seen = buildx.builder(active.settings.buildx).is_engine
    config = base_images["runtime"].config if plan.extends_base else {}
    starts = {"entrypoint": config.get("Entrypoint") or [], "command": config.get("Cmd") or []}
    arguments = {"BASE_USER": config.get("User") or "root"} if plan.extends_base else {}
    if active.settings.jobs:  # else the machine that compiles decides
        arguments["BUILDER_JOBS"] = str(active.settings.jobs)
    options = replace(
        _options(active),
        image=names.get("devel") or names.get("runtime"),
        base_start=starts,
        bases=build_contexts(names, work / "bases", seen=seen),
        arguments=arguments,
        epoch=_epoch(plan, base_images, offline=active.offline),
    )
    return gather.gather(plan, options, work)


def _options(active: ActiveBuild) -> gather.GatherOptions:
    """Where inputs are gathered."""
    cache, servers = active.settings.cache_dir, active.settings.debian_servers
    return gather.GatherOptions(cache, active.progress.log, offline=active.offline, debian=servers)


def _epoch(plan: AnyPlan, base_images: Mapping[str, docker.Image], *, offline: bool) -> int:
    """The time of the newest input that is not a source, in seconds since 1970.

    Only images of a registry are newer than the plan: the root of a base, and a published image.
    Raises ``FetchError`` where it is not known.
    """
    own = plan.base.references if plan.base else base_images
    times = [image.epoch for stage, image in base_images.items() if stage in own]
    if isinstance(plan.root, RegistryRoot) and not base_images:
        times.append(roots.created(plan.root, plan.platforms.target, offline=offline))
    return max(plan.epoch, *times, 0)


def extended_image(plan: Plan) -> docker.Image | None:
    """The image of the engine that an image extends; None where it extends none.

    Raises ``WorldError`` where the engine does not have it.
    """
    if not plan.extends_base:
        return None
    name = plan.base.references["runtime"]
    found = docker.image(name)
    if found is None:
        raise WorldError(
            f"Docker does not have the base of {plan.name}",
            f"looked for {name}",
            f"build it: `builder build {plan.name}`",
        )
    return found


def layer_cache(plan: AnyPlan, stage: str, active: ActiveBuild, *, anew: bool = False) -> str:
    """Where the layers of a stage are kept on a registry; empty: nowhere.

    The layers of a build without caches (``anew``) are found by no other build.
    """
    cache = active.settings.layer_cache
    if not cache or active.offline or anew or not plan.worth_caching:
        return ""
    return f"{cache}:{plan.name}" if stage == "image" else f"{cache}:{plan.name}-{stage}"
