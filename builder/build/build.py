"""From a resolved recipe to an image with a good verdict: ``build`` is the story.

1. The engine is asked for the image of the key, and the records for a good verdict on it.
2. With the lock of the recipe they are asked again; an image without a verdict is checked again.
3. The disk, the builder and its emulators are checked, and a log begins.
4. The bases are built where the engine lacks them (``ensure_bases_of``).
5. The simulated cards of the checks are compiled in the meantime.
6. An image that a stopped run built is taken; else ``build_stages`` gathers the sources, lays them
   out and runs buildx, and the PTX of the machine code is kept (``ccache``).
7. The image is checked (``lookup``), and the verdict is reported.
8. A refused image keeps the name of a candidate; a good one gets its names.
9. The record is written (``record``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from builder.build import ccache, record, roots
from builder.build.log import BuildLog, BuildStep, new_log
from builder.build.lookup import Images, check, compile_simulators, require_good
from builder.build.record import Record
from builder.build.roots import PATIENCE, in_engine
from builder.core.errors import (
    BuilderError,
    BuildError,
    FetchError,
    GoneError,
    RecipeError,
    UntriedError,
    WorldError,
    listed,
)
from builder.core.files import atomic_write, named_lock, require_space, require_writable, workspace
from builder.core.log import Timings, build_stage
from builder.core.parallel import beside
from builder.core.platforms import PLATFORMS, Platform
from builder.core.settings import Settings
from builder.docker import buildx, containers
from builder.docker import engine as docker
from builder.docker.buildx import Builder
from builder.docker.containers import build_contexts
from builder.plan.inputs import RegistryRoot
from builder.plan.plan import AnyPlan, BasePlan, Plan
from builder.plan.resolver import Resolver
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import Artifact, Recipe
from builder.sources import gather
from builder.sources.gather import BuildContext

if TYPE_CHECKING:
    from builder.checks.subject import GpuTest
    from builder.checks.verdict import Verdict

WORK_SPACE = 2.0  # GiB in the cache directory: CUDA's wheels, the source, a saved image
RACES = 3  # attempts at a build that other work in the engine comes between


class Reporter(Protocol):
    """Receives the progress of a build, and the verdict on its image."""

    def log(self, line: str, /) -> None:
        """A line for the user."""

    def on_progress(self, progress: BuildStep | str, /) -> None:
        """A step of a compile, or any other line of BuildKit's progress."""

    def on_verdict(self, name: str, verdict: Verdict, /) -> None:
        """The verdict on an image, good or not, before anything follows from it."""


@dataclass(frozen=True, slots=True)
class ActiveBuild:
    """One build at work: its settings and log, who hears of its progress, and its times."""

    settings: Settings
    progress: Reporter
    log: BuildLog
    offline: bool = False  # fetch nothing: an input that is neither mirrored nor cached is an error
    seconds: Timings = field(default_factory=Timings)

    @property
    def options(self) -> gather.GatherOptions:
        """How inputs are gathered."""
        cache, servers = self.settings.cache_dir, self.settings.debian_servers
        log = self.progress.log
        return gather.GatherOptions(cache, log, offline=self.offline, debian=servers)

    @property
    def builder(self) -> Builder:
        """The buildx builder that compiles."""
        return buildx.builder(self.settings.buildx)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSession:
    """The recipes, the options and the reporter of all builds of one command."""

    catalog: Catalog
    settings: Settings
    reporter: Reporter
    gpu_test: GpuTest | None = None  # the checks on a GPU; None: there are none
    card: str | None = None  # the simulated card; None: the smallest that runs the code
    simulated: bool = True  # start the engine on simulated cards
    rebuild: bool = False  # build an image that exists
    platform: Platform | None = None  # of the image; None: the only one, or all
    offline: bool = False  # fetch nothing: an input that is neither mirrored nor cached is an error

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
        """The plans of a recipe's images in its order; only one if the options name a platform."""
        self.catalog.engine(name)  # reports a broken recipe also where no engine answers
        return self._resolver().plans(name, self.platform)

    def resolve(self, name: str, platform: Platform | None = None) -> Plan:
        """The plan of a recipe's image for a platform; None: the options', else the only one."""
        self.catalog.engine(name)
        return self._resolver().resolve(name, platform or self.platform)

    def resolve_base(self, name: str) -> BasePlan:
        """The plan of a base, for the platform of the options, else for linux/amd64."""
        return self._resolver().resolve_base(name, PLATFORMS[self.platform or "linux/amd64"])

    def _resolver(self) -> Resolver:
        return roots.resolver_of(self.catalog, self.settings, self.log, offline=self.offline)


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """The record of an image; whether this run built and checked it."""

    record: Record
    built: bool
    checked: bool = True


def build(plan: Plan, session: BuildSession) -> BuildOutcome:
    """Build an image, check it and give it its names; or find it already there.
    Raises a ``BuilderError``; ``SmokeError`` when the image was built and fails a check."""
    settings, state, name = session.settings, session.settings.state_dir, plan.name
    images = Images(session)
    _require_digests(docker.engine())
    settings.require_directories()
    _, verified = _found(plan, images)
    if verified is not None:
        return verified
    with named_lock(settings.cache_dir, name), workspace(settings.cache_dir) as work:
        image, verified = _found(plan, images)  # another run may have built it meanwhile
        if verified is not None:
            return verified
        if image is not None:
            session.log(f"{plan.title} is built already; running its smoke test again")
            if plan.extends_base:  # its checks read the base, which may be gone from the engine
                with session.active(name) as active:
                    ensure_bases_of(plan, active)
            kept = images.check_again(plan, image, work)
            require_good(kept, image.reference)
            images.name(plan, image)
            record.remove_candidate(state, name, plan.key)
            return BuildOutcome(kept, built=False)
        require_disk(settings, plan.recipe.build.disk, f"the build of {plan.title}")
        require_space(work, WORK_SPACE, f"the inputs of {name}")
        with session.active(name) as active:
            started = datetime.now(UTC).isoformat(timespec="seconds")
            buildx.require_emulators(plan.platforms, active.builder)
            try:
                base_images = ensure_bases_of(plan, active)
            except GoneError as error:
                error.why += _published_before(plan, session)
                raise
            with beside() as other:
                other.begin(partial(compile_simulators, plan, session))
                image = None if session.rebuild else images.candidate(plan)
                built = image is None
                if image is None:
                    image = _compiled(plan, base_images, session, active, work)
                    _keep_ptx(plan, image, active, work)
                session.log(f"smoke test of {plan.title}")
                log = active.log
                if not built or (not log.objects and images.record(plan, image)):
                    # BuildKit had all steps: the recorded facts are of the build that compiled.
                    kept = images.check(plan, image, work, other.wait)
                else:
                    facts = {
                        "created": started,
                        "way": buildx.way_name(plan.platforms, active.builder),
                        "built_here": True,
                        "log": str(log.path),
                        "objects": log.objects,
                        "reused": log.reused,
                    }
                    kept = check(plan, image, session, active.seconds, work, other.wait)
                    kept = kept.model_copy(update=facts)
        if not kept.verdict.good:
            record.write(state, kept.model_copy(update={"references": (image.reference,)}))
            require_good(kept, image.reference)
        images.name(plan, image)
        record.write(state, kept)
        record.remove_candidate(state, name, plan.key)
        return BuildOutcome(kept, built)


def build_all(plans: Sequence[Plan], session: BuildSession) -> list[BuildOutcome | BuilderError]:
    """Build each image; the error of a failed one stands at its place."""
    results: list[BuildOutcome | BuilderError] = []
    for plan in plans:
        try:
            results.append(build(plan, session))
        except BuilderError as error:
            if len(plans) > 1:
                session.log(f"{plan.title} failed: {error.what}")
            results.append(error)
    return results


def require_all(plans: Sequence[Plan], results: Sequence[object]) -> None:
    """Raise the error of a failed image, or one that names each; an untried check counts least."""
    pairs = zip(plans, results, strict=True)
    failed = [(plan, result) for plan, result in pairs if isinstance(result, BuilderError)]
    if not failed:
        return
    _, worst = min(failed, key=lambda each: isinstance(each[1], UntriedError))
    if len(plans) == 1:
        raise worst
    names = [*dict.fromkeys(plan.name for plan in plans)]
    titles = [plan.platform if len(names) == 1 else plan.title for plan, _ in failed]
    why = "\n".join(f"{title}: {each}" for title, (_, each) in zip(titles, failed, strict=True))
    of = listed(names, 3, ", ")
    raise type(worst)(f"{len(failed)} of {len(plans)} images of {of} failed", why)


def _found(plan: Plan, images: Images) -> tuple[docker.Image | None, BuildOutcome | None]:
    """The image of a plan, and its outcome if it is verified; nothing of it is built again."""
    image, kept = (None, None) if images.session.rebuild else images.of(plan)
    if image is None or kept is None:
        return image, None
    images.name(plan, image)
    return image, BuildOutcome(kept, built=False, checked=False)


def _published_before(plan: Plan, session: BuildSession) -> str:
    """A line about the registry's image of this key; empty where none is known."""
    if not session.settings.namespace:
        return ""
    name = f"{plan.repository}:{plan.immutable_tag}"
    try:
        digest = buildx.registry_digest(name, PATIENCE)
    except BuilderError:
        return ""
    return f"\n{name} ({digest}) was built of it, and is in the registry"


def _compiled(
    plan: Plan,
    base_images: Mapping[str, docker.Image],
    session: BuildSession,
    active: ActiveBuild,
    work: Path,
) -> docker.Image:
    """Build a candidate."""
    state, name = active.settings.state_dir, plan.name
    if active.offline and not plan.debian.locked:
        raise FetchError(
            f"{name} installs Debian packages, and has no lock of them",
            "nothing is fetched (--offline)",
            f"`builder pin lock {name}` and `builder pin mirror {name}`, with a network",
        )
    session.log(f"building {plan.title} ({plan.short_key}); the full log is {active.log.path}")
    before = record.last_time(state, buildx.way_name(plan.platforms, active.builder), name)
    way = buildx.way_text(plan.platforms, active.builder)
    session.log(way + (f"; last time {before}" if before else ""))
    options = anew(compiles=True) if session.rebuild else ()
    stages = {"image": plan.candidate}
    try:
        image = build_stages(plan, stages, base_images, active, work, options)["image"]
    except BuildError as error:
        if not active.log.unused:
            raise
        raise _unused(session.catalog.engine(name), active.log) from error
    record.write_candidate(state, name, plan.key, image.digest)
    return image


def _unused(entry: Entry[Recipe], log: BuildLog) -> BuildError:
    """The error of definitions of a recipe that cmake did not use."""
    problems = []
    for number, name in log.unused:
        call = entry.recipe.cmake[number - 1]
        over = [each.name for each in call.override]
        key = ("override", over.index(name), "name") if name in over else ("define", name)
        problems.append(entry.problem(("cmake", number - 1, *key), "cmake does not use it"))
    names = ", ".join(name for _, name in log.unused)
    return BuildError(
        f"the build of {entry.name} failed: the source has no use for {names}",
        "\n".join([*map(str, problems), f"the full log is {log.path}"]),
        "remove the definition, or correct its name: the source's CMakeLists.txt has all names",
    )


def _require_digests(engine: docker.Engine) -> None:
    if not engine.containerd_store:
        raise WorldError(
            "Docker keeps its images in the classic store, without manifest digests",
            f"it uses {engine.driver}",
            'put {"features": {"containerd-snapshotter": true}} into /etc/docker/daemon.json and '
            "restart Docker",
        )


def _keep_ptx(plan: Plan, image: docker.Image, active: ActiveBuild, work: Path) -> None:
    """Keep the PTX of a new image, which is the same without; errors are only logged."""
    log = active.progress.log
    try:
        with active.seconds.stage("keep PTX"):
            kept = ccache.keep(plan, image, active.settings, work)
    except (BuilderError, OSError) as error:
        log(f"the PTX of {plan.title} is not kept: {error}")
        return
    if kept is not None and kept.missing:
        log(
            f"the PTX of {len(kept.missing)} of {kept.modules} modules of {plan.title} is not "
            f"known: `builder ptx {plan.name} --compile` compiles them again"
        )


def ptx_of_image(
    plan: Plan, image: docker.Image, session: BuildSession, *, compiles: bool
) -> ccache.Kept:
    """The PTX of the image of a recipe that the engine has.

    ``compiles``: where some is not known, the engine is compiled again without the results of the
    compiler cache, so that its PTX is written; the image stays.  Raises ``UntriedError``.
    """
    settings = session.settings
    settings.require_directories()
    with workspace(settings.cache_dir) as work:
        kept = ccache.keep(plan, image, settings, work)
    if kept is not None and kept.missing and compiles:
        with (
            workspace(settings.cache_dir) as work,
            session.active(plan.name) as active,
            named_lock(settings.cache_dir, plan.name),
        ):
            base_images = ensure_bases_of(plan, active)
            require_disk(settings, plan.recipe.build.disk, f"the build of {plan.title}")
            session.log(
                f"compiling {plan.title} without the compiler cache; the log is {active.log.path}"
            )
            options = anew(compiles=True, ccache=False)
            build_stages(plan, {"image": plan.candidate}, base_images, active, work, options)
            docker.untag(plan.candidate)
        with workspace(settings.cache_dir) as work:
            kept = ccache.keep(plan, image, settings, work)
    if kept is None:
        raise UntriedError(
            f"{plan.title} has no machine code that nvcc compiled from PTX",
            f"looked at {image.reference}",
            "engines on published images, and engines without CUDA code, have none",
        )
    return kept


# The bases: images that the engine lacks are built, published ones are pulled.


def require_disk(settings: Settings, gib: float, what: str) -> None:
    """Raise ``SpaceError`` where the engine compiles, and has too little disk."""
    if buildx.builder(settings.buildx).is_engine:
        require_space(docker.engine().root, gib, what)


def compile_image(plan: Plan, session: BuildSession) -> str | None:
    """The image in which a recipe compiles, built where missing; None: it compiles nothing."""
    if not plan.family.uses_ccache:
        return None
    session.settings.require_directories()
    with session.active(f"base-{plan.base.name}") as active:
        ensure_bases(plan.base, active)
    return plan.devel


def ensure_bases_of(plan: Plan, active: ActiveBuild) -> dict[str, docker.Image]:
    """The images that an engine's stages begin with, by stage."""
    there = {base.name: _there(base) for base in plan.bases()}
    if any(len(there[base.name]) < len(base.references) for base in plan.bases()):
        gather.fetch_commits(plan, active.options)  # before minutes of work on a base
    images = [ensure_bases(base, active, there[base.name]) for base in plan.bases()]
    return {name: image for found in reversed(images) for name, image in found.items()}


def ensure_bases(
    base: BasePlan, active: ActiveBuild, there: dict[str, docker.Image] | None = None
) -> dict[str, docker.Image]:
    """Build the images that the engine lacks of a base and of those below it; its images, by stage.

    The files of a base are fetched while the one below it is built.  ``there`` as ``_there``.
    """
    found = _there(base) if there is None else there
    lacking = len(found) < len(base.references)
    below: dict[str, docker.Image] = {}
    if base.base is not None:
        with beside() as other:
            if lacking:
                other.begin(partial(gather.fetch, base, active.options))
            below = ensure_bases(base.base, active)
            other.wait()
    if not lacking:
        return found
    cache, name, log = active.settings.cache_dir, base.name, active.progress.log
    with named_lock(cache, f"base-{name}", wait=log):
        found = _there(base)  # another run may have built them meanwhile
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


def _there(base: BasePlan) -> dict[str, docker.Image]:
    """The images of a base that the engine has, by stage."""
    names = base.references.items()
    return {stage: image for stage, name in names if (image := in_engine(base, name))}


def pulled_root(base: BasePlan, active: ActiveBuild) -> dict[str, docker.Image]:
    """The published image that a base starts from, pulled; empty: it starts from none."""
    published, root = base.recipe.published, base.root
    if published is None or not isinstance(root, RegistryRoot):
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


# The stages of a plan: inputs gathered, laid out, built by buildx.


def build_stages(
    plan: AnyPlan,
    references: Mapping[str, str],
    base_images: Mapping[str, docker.Image],
    active: ActiveBuild,
    work: Path,
    again: Sequence[str] = (),
) -> dict[str, docker.Image]:
    """Gather a plan's inputs and build the stages that ``references`` names; the images, by stage.

    ``base_images`` are its base's images, by stage; ``work`` is an empty directory; ``again`` are
    the options of ``anew``: then no layer is kept on a registry.
    """
    builder = active.builder
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
            compress_base=isinstance(plan, Plan) and plan.compresses_base,
            cache=layer_cache(plan, stage, active, anew=bool(again)),
            again=again,
        )

    def prepare(stage: str) -> None:
        with closing(BuildLog(work / f"{stage}.log")) as aside:
            built_stage(stage, aside, lambda _: None)

    with active.seconds.stage(build_stage(plan.name)), beside() as other:
        first, *others = references
        # So that its steps are cached when its turn comes: without a cache, and for an image that
        # is transferred from another builder, the work would be done twice.
        for stage in others if builder.is_engine and not again else ():
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
    """Gather a plan's inputs into a build context, below the empty directory ``work``."""
    names = {stage: base.reference for stage, base in base_images.items()}
    config = base_images["runtime"].config if plan.extends_base else {}
    starts = {"entrypoint": config.get("Entrypoint") or [], "command": config.get("Cmd") or []}
    arguments = {"BASE_USER": config.get("User") or "root"} if plan.extends_base else {}
    if active.settings.jobs:  # else the machine that compiles decides
        arguments["BUILDER_JOBS"] = str(active.settings.jobs)
    # The newest input that is not a source: only images of a registry are newer than the plan.
    own = plan.base.references if plan.base else base_images
    times = [image.epoch for stage, image in base_images.items() if stage in own]
    if isinstance(plan.root, RegistryRoot) and not base_images:
        target = plan.platforms.target
        times.append(roots.created(plan.root, target, offline=active.offline))
    options = replace(
        active.options,
        image=names.get("devel") or names.get("runtime"),
        base_start=starts,
        bases=build_contexts(names, work / "bases", seen=active.builder.is_engine),
        arguments=arguments,
        epoch=max(plan.epoch, *times, 0),
    )
    return gather.gather(plan, options, work)


def layer_cache(plan: AnyPlan, stage: str, active: ActiveBuild, *, anew: bool = False) -> str:
    """Where the layers of a stage are kept on a registry; empty: nowhere, as without caches."""
    cache = active.settings.layer_cache
    if not cache or active.offline or anew or not plan.worth_caching:
        return ""
    return f"{cache}:{plan.name}" if stage == "image" else f"{cache}:{plan.name}-{stage}"


def anew(*, compiles: bool, ccache: bool = True) -> list[str]:
    """The options of a build that takes no layer from a cache.

    A Dockerfile that ``compiles`` has the stages entrypoint, build and image.  --no-cache would
    empty the compiler cache of every engine (moby/buildkit#4250), so the stage build has the
    argument REBUILD.  Without ``ccache`` its results are not used.
    """
    if not compiles:
        return ["--no-cache"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    options = ["--no-cache-filter=entrypoint,npm,image", f"--build-arg=REBUILD={now}"]
    return options if ccache else [*options, "--build-arg=CCACHE_DISABLE=1"]


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
    again: Sequence[str] = (),
) -> docker.Image:
    """Build one stage of a context into an image of the engine named ``reference``.

    ``compression`` of its layers is "gzip" or "zstd"; ``compress_base``: the layers of the
    image that it is built on get it as well, whatever they have; ``cache`` is the name on a
    registry that keeps the layers of all its steps; ``again`` are the options of ``anew``.
    """
    metadata = context.folder.parent / f"{stage}.metadata.json"
    archive = context.folder.parent / f"{stage}.oci.tar"
    # An image from another BuildKit is transferred completely, in the engine's own format.
    output = "type=image" if builder.is_engine else buildx.fields("type=oci", f"dest={archive}")
    output += f",oci-mediatypes=true,name={reference},compression={compression}"
    output += ",force-compression=true" if compress_base else ""
    arguments = [f"--target={stage}", "--provenance=false", f"--output={output}"]
    arguments += [f"--metadata-file={metadata}"]
    if cache:
        # https://docs.docker.com/build/cache/backends/registry/; the manifest is an image's,
        # because many registries take no other.  A cache that takes nothing fails no build.
        layers = f"type=registry,ref={cache}"
        to = f"{layers},mode=max,image-manifest=true,oci-mediatypes=true,ignore-error=true"
        arguments += [f"--cache-from={layers}", f"--cache-to={to}"]
    arguments += [f"--label={name}={value}" for name, value in labels.items()]
    # A registry shows the labels that OCI's image specification defines, as annotations.
    standard = [name for name in labels if name.startswith("org.opencontainers.image.")]
    arguments += [f"--annotation=manifest:{name}={labels[name]}" for name in standard]
    arguments += again
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


# The files of an artifact, taken out of its image.


def require_artifact(recipe: Recipe, folder: Path) -> Artifact:
    """The artifact of a recipe, whose files are to be written to ``folder``."""
    if recipe.artifact is None:
        raise RecipeError(
            f"{recipe.name} has no files that --output could write",
            "it is an engine, whose result is an image; --output is for the family artifact",
            "leave --output away; `docker image save` writes an image to a file",
        )
    require_writable(folder)
    return recipe.artifact


def deliver(artifact: Artifact, reference: str, folder: Path) -> list[Path]:
    """Write the files of a verified image to ``folder``, each atomically."""
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
