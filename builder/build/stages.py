"""The stages of a plan become images of the engine: inputs gathered, laid out, built by buildx.

The images of a base that the engine lacks are built first; published ones are pulled.  A failure is
explained by the build's log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from builder.build import roots
from builder.build.log import BuildLog, BuildStep
from builder.build.roots import in_engine
from builder.core.errors import BuilderError, BuildError, FetchError, RecipeError, WorldError
from builder.core.files import atomic_write, named_lock, require_space, require_writable, workspace
from builder.core.log import Timings, build_stage
from builder.core.parallel import beside
from builder.core.platforms import Platforms, architecture
from builder.core.settings import Settings
from builder.docker import buildx, containers
from builder.docker import engine as docker
from builder.docker.blobs import build_contexts
from builder.docker.buildx import Builder
from builder.plan.inputs import RegistryRoot
from builder.plan.plan import AnyPlan, BasePlan, Plan
from builder.recipes.schema import Artifact, Recipe
from builder.sources import gather
from builder.sources.gather import BuildContext

STANDARD = "org.opencontainers.image."
# The attempts at a build that other work in the engine comes between.
RACES = 3


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
    there = {base.name: _found(base) for base in plan.bases()}
    if any(len(there[base.name]) < len(base.references) for base in plan.bases()):
        gather.fetch_commits(plan, _options(active))
    found: dict[str, docker.Image] = {}
    for base in plan.bases():
        found = ensure_bases(base, active, there[base.name]) | found
    return found


def ensure_bases(
    base: BasePlan, active: ActiveBuild, there: dict[str, docker.Image] | None = None
) -> dict[str, docker.Image]:
    """Build the images that the engine lacks of a base and of those below it; its images, by stage.

    The files of a base are fetched while the one below it is built.  ``there`` are its images that
    the engine has, where that is known.
    """
    found = _found(base) if there is None else there
    lacking = len(found) < len(base.references)
    below: dict[str, docker.Image] = {}
    if base.base is not None:
        with beside() as other:
            if lacking:
                other.begin(partial(gather.fetch, base, _options(active)))
            below = ensure_bases(base.base, active)
            other.wait()
    if not lacking:
        return found
    cache, name, log = active.settings.cache_dir, base.name, active.progress.log
    with named_lock(cache, f"base-{name}", wait=log):
        found = _found(base)  # another run may have built them meanwhile
        missing = {stage: name for stage, name in base.references.items() if stage not in found}
        if not missing:
            return found
        if active.offline and base.recipe.published is None:
            _require_mirrored(base)
        require_disk(active.settings, base.recipe.build.disk, f"the base {name}")
        log(f"building the base {name} ({base.short_key})")
        below = below or pulled_root(base, active)
        with workspace(cache) as work:
            return found | build_stages(base, missing, below, active, work)


def pulled_root(base: BasePlan, active: ActiveBuild) -> dict[str, docker.Image]:
    """The published image that a base starts from, pulled; empty: it starts from none."""
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
    in ``build_image``, and no layer is kept on a registry then.
    """
    builder = buildx.builder(active.settings.buildx)
    with active.seconds.stage(f"fetch {plan.name}"):
        laid_out = lay_out(plan, base_images, active, work)
    runtime = base_images.get("runtime")
    labels = plan.labels_of(laid_out.created, runtime.digest if runtime else "")

    def built_stage(
        stage: str, log: BuildLog, on_progress: Callable[[BuildStep | str], None], /
    ) -> docker.Image:
        return build_image(
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

    with active.seconds.stage(build_stage(plan.name)), beside() as other:
        first, *others = references
        # So that its steps are cached when its turn comes: without a cache, and for an image that
        # is transferred from another builder, the work would be done twice.
        for stage in others if builder.is_engine and not anew else ():
            other.begin(partial(prepare, stage))
        built = {first: built_stage(first, active.log, active.progress.on_progress)}
        other.wait()
        for stage in others:
            built[stage] = built_stage(stage, active.log, active.progress.on_progress)
    if active.log.not_kept:
        where = active.settings.layer_cache
        active.progress.log(f"the layers are not kept in {where}: {active.log.not_kept}")
        active.log.not_kept = ""
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
    """
    own = plan.base.references if plan.base else base_images
    times = [image.epoch for stage, image in base_images.items() if stage in own]
    if isinstance(plan.root, RegistryRoot) and not base_images:
        times.append(roots.created(plan.root, plan.platforms.target, offline=offline))
    return max(plan.epoch, *times, 0)


def extended_image(plan: Plan) -> docker.Image | None:
    """The image of the engine that an image extends; None where it extends none."""
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


class BreakdownError(BuildError):
    """A step lacked memory, or an archive did not answer: the sources may be right."""


def build_image(
    context: BuildContext,
    stage: str,
    reference: str,
    labels: Mapping[str, str],
    log: BuildLog,
    on_progress: Callable[[BuildStep | str], None],
    builder: Builder,
    *,
    compression: str = "gzip",
    compress_base: bool = False,
    cache: str = "",
    anew: Sequence[str] = (),
) -> docker.Image:
    """Build one stage of a context into an image of the engine named ``reference``.

    ``compression`` of its layers is "gzip" or "zstd"; ``compress_base``: the layers of the
    image that it is built on get it as well, whatever they have; ``cache`` is the name on a
    registry that keeps the layers of all its steps; ``anew`` are the options of ``anew`` where no
    layer is taken from a cache.
    """
    metadata = context.folder.parent / f"{stage}.metadata.json"
    archive = context.folder.parent / f"{stage}.oci.tar"
    # An image from another BuildKit is transferred completely, in the engine's own format.
    output = "type=image" if builder.is_engine else buildx.fields("type=oci", f"dest={archive}")
    arguments = [f"--target={stage}", "--provenance=false"]
    output += f",oci-mediatypes=true,name={reference},compression={compression}"
    arguments += [f"--output={output}{',force-compression=true' if compress_base else ''}"]
    arguments += [f"--metadata-file={metadata}"]
    arguments += _cached_at(cache) if cache else []
    arguments += [f"--label={name}={value}" for name, value in labels.items()]
    arguments += [f"--annotation={annotation}" for annotation in annotations_of(labels)]
    arguments += anew
    for attempt in range(1, RACES + 1):
        log.begin()
        status = buildx.build(
            builder,
            [*arguments, *context.arguments(stage)],
            lambda line: on_progress(log.line(line)),
        )
        # All other layers are cached.
        if status == 0 or attempt == RACES or not log.race_lost:
            break
    if status != 0:
        raise _explained(reference, log, builder)
    if not builder.is_engine:
        docker.load(archive, reference)
        archive.unlink()
    digest = json.loads(metadata.read_text("utf-8")).get("containerimage.digest")
    found = docker.image(reference)
    if found is None or digest not in {None, found.digest}:
        raise BuildError(f"Docker lost the image {reference} just built", hint="build again")
    return found


def anew(*, compiles: bool, ccache: bool = True) -> list[str]:
    """The options of a build that takes no layer from a cache.

    A Dockerfile that ``compiles`` has the stages entrypoint, build and image.  --no-cache would
    empty the compiler cache of every engine (moby/buildkit#4250), so the stage build has the
    argument REBUILD.  Without ``ccache`` its results are not used.
    """
    if not compiles:
        return ["--no-cache"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    options = ["--no-cache-filter=entrypoint,image", f"--build-arg=REBUILD={now}"]
    return options if ccache else [*options, "--build-arg=CCACHE_DISABLE=1"]


def annotations_of(labels: Mapping[str, str]) -> list[str]:
    """The annotations of an image's manifest, as buildx takes them: the labels that the OCI image
    specification defines ("Pre-Defined Annotation Keys").  A registry shows them."""
    return [
        f"manifest:{name}={value}" for name, value in labels.items() if name.startswith(STANDARD)
    ]


def _cached_at(reference: str) -> list[str]:
    """Layers are taken from a registry and kept there, also the layers of steps in between.

    https://docs.docker.com/build/cache/backends/registry/; the manifest is an image's, because
    many registries take no other.  A cache that cannot be written to fails no build.
    """
    to = f"type=registry,ref={reference},mode=max,image-manifest=true,oci-mediatypes=true"
    return [f"--cache-from=type=registry,ref={reference}", f"--cache-to={to},ignore-error=true"]


def _explained(reference: str, log: BuildLog, builder: Builder) -> BuilderError:
    if log.disk_full:
        return buildx.full_disk(builder, f"{reference} was being built; the log is {log.path}")
    try:
        buildx.require_builder(builder)
    except WorldError as error:
        who = "Docker" if builder.is_engine else f"the builder {builder.name}, or Docker,"
        return WorldError(f"{who} went away during the build", f"{error}\nthe log is {log.path}")
    text = log.path.read_text("utf-8", errors="replace")
    errors = "\n".join(log.errors) or "\n".join(text.splitlines()[-15:])
    what = f"the build of {reference} failed" + (f": {log.reason}" if log.reason else "")
    why = f"{errors}\nthe full log is {log.path}"
    if log.breakdown:
        return BreakdownError(what, why, log.breakdown)
    hints = " and ".join(sorted(log.all_text_hints))
    return BuildError(
        what, why, hints or "read the first error above; the log has the command that it came from"
    )


# The way of a compile: on the engine's machine or another one, for its own architecture or not.

EMULATORS = (
    "register an emulator: `apt-get install qemu-user-static` on Debian or Ubuntu, which needs "
    "systemd; elsewhere "
    "`docker run --privileged --rm tonistiigi/binfmt --install all`"
)


def is_emulated(platforms: Platforms, builder: Builder) -> bool:
    """Whether the compiler itself runs under emulation."""
    return architecture(builder.architecture) not in {None, platforms.build}


def way_name(platforms: Platforms, builder: Builder) -> str:
    """ "native", "cross" or "emulated", or several: "remote cross"."""
    words = [] if builder.is_engine else ["remote"]
    if not is_emulated(platforms, builder) and not platforms.cross:
        return " ".join([*words, "native"])
    words += ["cross"] if platforms.cross else []
    words += ["emulated"] if is_emulated(platforms, builder) else []
    return " ".join(words)


def way_text(platforms: Platforms, builder: Builder) -> str:
    """For people: "cross: compiled on linux/arm64 for linux/amd64"."""
    parts = [f"compiled on linux/{platforms.build}"]
    if is_emulated(platforms, builder):
        parts.append(f"(emulated on {architecture(builder.architecture)})")
    parts += [f"for linux/{platforms.target}"] if platforms.cross else []
    parts += [] if builder.is_engine else [f"by the builder {builder.name}"]
    return f"{way_name(platforms, builder)}: {' '.join(parts)}"


def require_emulators(platforms: Platforms, builder: Builder) -> None:
    """Raise ``WorldError`` where the builder cannot run the programs of both platforms.

    Programs of the build platform compile.  Programs of the target install Debian's packages in the
    image, and run in its smoke test.
    """
    if not is_emulated(platforms, builder) and not platforms.cross:
        return
    runs = buildx.platforms(builder.name)
    for name in platforms.both:
        if f"linux/{name}" not in runs:
            why = f"it runs {', '.join(runs)}; the build is {way_text(platforms, builder)}"
            if name != platforms.build:
                why += "\nthe compile needs no emulation, but the packages of the image and its "
                why += "smoke test run programs of the image"
            raise WorldError(f"the builder runs no programs of linux/{name}", why, EMULATORS)


# The files of an artifact, taken out of its image.


def require_artifact(recipe: Recipe, folder: Path) -> Artifact:
    """The artifact of a recipe, whose files are to be written to ``folder``.

    Raises ``RecipeError`` for an engine, ``WorldError`` where the directory cannot be written to.
    """
    if recipe.artifact is None:
        raise RecipeError(
            f"{recipe.name} has no files that --output could write",
            "it is an engine, whose result is an image; --output is for the family artifact",
            "leave --output away; `docker image save` writes an image to a file",
        )
    require_writable(folder)
    return recipe.artifact


def deliver(artifact: Artifact, reference: str, folder: Path) -> list[Path]:
    """Write the files of a verified image to ``folder``, each atomically.

    Raises ``WorldError`` where the directory does not take them.
    """
    delivered = []
    for name in artifact.names:
        file = folder / name
        try:
            with atomic_write(file) as waiting:
                containers.copy_out(reference, f"/{name}", waiting)
        except OSError as error:
            raise WorldError(f"{file} cannot be written", error.strerror or str(error)) from error
        delivered.append(file)
    return delivered
