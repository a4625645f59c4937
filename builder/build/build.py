"""From a resolved recipe to an image with a good verdict: ``build`` is the story.

1. The engine is asked for the image of the key, and the records for a good verdict on it.
2. With the lock of the recipe they are asked again; an image without a verdict is checked again.
3. The disk, the builder and its emulators are checked, and a log begins.
4. The bases are built where the engine lacks them (``stages``).
5. The simulated cards of the checks are compiled in the meantime.
6. An image that a stopped run built is taken; else ``stages`` gathers the sources, lays them
   out and runs buildx, and the PTX of the machine code is kept (``ccache``).
7. The image is checked (``verify``), and the verdict is reported.
8. A refused image keeps the name of a candidate; a good one gets its names.
9. The record is written (``record``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from builder.build import record
from builder.build.ccache import keep_built
from builder.build.log import BuildLog
from builder.build.lookup import Images
from builder.build.record import Record
from builder.build.roots import PATIENCE
from builder.build.session import BuildSession
from builder.build.stages import (
    ActiveBuild,
    anew,
    build_stages,
    ensure_bases_of,
    require_disk,
    require_emulators,
    way_name,
    way_text,
)
from builder.build.verify import check, compile_simulators, require_good
from builder.core.errors import (
    BuilderError,
    BuildError,
    FetchError,
    GoneError,
    UntriedError,
    WorldError,
)
from builder.core.files import named_lock, require_space, workspace
from builder.core.parallel import beside
from builder.docker import buildx
from builder.docker import engine as docker
from builder.plan.plan import Plan
from builder.recipes.catalog import Entry
from builder.recipes.schema import Recipe

WORK_SPACE = 2.0  # GiB in the cache directory: CUDA's wheels, the source, a saved image


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """The record of an image; whether this run built and checked it."""

    record: Record
    built: bool
    checked: bool = True


def build(plan: Plan, session: BuildSession) -> BuildOutcome:
    """Build an image, check it and give it its names; or find it already there.

    Raises a ``BuilderError`` of the kind of the failure; ``SmokeError`` when the image
    was built and fails a check.
    """
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
            builder = buildx.builder(settings.buildx)
            require_emulators(plan.platforms, builder)
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
                    keep_built(plan, image, active, work)
                session.log(f"smoke test of {plan.title}")
                log = active.log
                if not built or (not log.objects and images.record(plan, image)):
                    # BuildKit had all steps: the recorded facts are of the build that compiled.
                    kept = images.check(plan, image, work, other.wait)
                else:
                    facts = {
                        "created": started,
                        "way": way_name(plan.platforms, builder),
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
    """Build each image of a recipe, as ``build`` does; a failed image does not stop the others.

    The error of a failed image stands at its place.
    """
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
    """Raise the error of an image that failed; of several, one error that names each.

    A check that could not be run counts less than any other failure.
    """
    failed = [
        (plan, result)
        for plan, result in zip(plans, results, strict=True)
        if isinstance(result, BuilderError)
    ]
    if not failed:
        return
    _, worst = min(failed, key=lambda each: isinstance(each[1], UntriedError))
    if len(plans) == 1:
        raise worst
    why = "\n".join(f"{plan.platform}: {error}" for plan, error in failed)
    name = plans[0].name
    raise type(worst)(f"{len(failed)} of {len(plans)} images of {name} failed", why)


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
    """Build a candidate.  Raises like ``build_stages``."""
    state, name = active.settings.state_dir, plan.name
    if active.offline and not plan.debian.locked:
        raise FetchError(
            f"{name} installs Debian packages, and has no lock of them",
            "nothing is fetched (--offline)",
            f"`builder pin lock {name}` and `builder pin mirror {name}`, with a network",
        )
    session.log(f"building {plan.title} ({plan.short_key}); the full log is {active.log.path}")
    builder = buildx.builder(active.settings.buildx)
    before = record.last_time(state, way_name(plan.platforms, builder), name)
    session.log(way_text(plan.platforms, builder) + (f"; last time {before}" if before else ""))
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
