"""From a resolved recipe to an image with a good verdict: the stages, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from builder.errors import BuilderError, FetchError, UntriedError, WorldError
from builder.images.active import ActiveBuild
from builder.images.bases import ensure_bases_of
from builder.images.build import anew
from builder.images.log import BuildLog, new_log
from builder.images.names import build_labels, ensure_tags, find_candidate, find_image
from builder.images.stages import build_stages, require_disk
from builder.images.way import Way, require_emulators, way_of
from builder.pipeline import kept_ptx
from builder.pipeline.check import (
    Candidate,
    check,
    check_again,
    compile_simulator,
    find_verified,
    require_good,
)
from builder.pipeline.session import BuildSession
from builder.pipeline.way import last_time
from builder.plan.plan import Plan
from builder.records import candidate as candidates
from builder.records import record
from builder.records.record import Record
from builder.settings import Settings
from builder.tools.beside import beside
from builder.tools.docker import engine as docker
from builder.tools.files import named_lock, require_space, workspace

WORK_SPACE = 2.0  # GiB in the cache directory: CUDA's wheels, the source, a saved image


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record of an image, and what this run did for it."""

    record: Record
    built: bool
    checked: bool = True


def build(plan: Plan, session: BuildSession) -> Outcome:
    """Build an image, check it and give it its names; or find it already there.

    Raises a ``BuilderError`` of the kind that says what went wrong; ``SmokeError`` when the image
    was built and fails a check.
    """
    _require_digests(docker.engine())
    settings, name = session.settings, plan.name
    settings.require_directories()
    known = _known(plan, _found(plan, session), settings)
    if known is not None:
        return known
    with named_lock(settings.cache_dir, name), workspace(settings.cache_dir) as work:
        found = _found(plan, session)  # another run may have built it meanwhile
        known = _known(plan, found, settings)
        if known is not None:
            return known
        if found is not None:
            session.log(f"{plan.title} is built already; running its smoke test again")
            kept = check_again(plan, found, session, work)
            require_good(kept, plan.references[0])
            ensure_tags(plan, plan.references[0])
            candidates.remove(settings.state_dir, name, plan.key)
            return Outcome(kept, built=False)
        require_disk(settings, plan.recipe.build.disk, f"the build of {plan.title}")
        require_space(work, WORK_SPACE, f"the inputs of {name}")
        with new_log(settings.state_dir, name) as log:
            return _build(plan, session, log, work)


def build_all(plans: Sequence[Plan], session: BuildSession) -> list[Outcome | BuilderError]:
    """Build each image of a recipe, as ``build`` does; one that fails does not stop the others.

    The error of one that failed stands at its place.
    """
    results: list[Outcome | BuilderError] = []
    for plan in plans:
        try:
            results.append(build(plan, session))
        except BuilderError as error:
            if len(plans) > 1:
                session.log(f"{plan.title} failed: {error.what}")
            results.append(error)
    return results


def require_all(plans: Sequence[Plan], results: Sequence[object]) -> None:
    """Raise the error of an image that failed; of several images, one that names each of those.

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


def _found(plan: Plan, session: BuildSession) -> docker.Image | None:
    """The image if the engine has it and no rebuild is requested."""
    return None if session.options.rebuild else find_image(plan)


def _known(plan: Plan, found: docker.Image | None, settings: Settings) -> Outcome | None:
    """The outcome if the image that was found is verified."""
    kept = find_verified(plan, found, settings)
    if found is None or kept is None:
        return None
    ensure_tags(plan, plan.references[0], found.names)
    return Outcome(kept, built=False, checked=False)


def _build(plan: Plan, session: BuildSession, log: BuildLog, work: Path) -> Outcome:
    """Build or find a candidate, check it, and tag it if it is good."""
    active = session.active()
    way = way_of(plan.platforms, active.settings)
    require_emulators(way, active.settings)
    base_images = ensure_bases_of(plan, active, log)
    with beside() as other:
        other.begin(partial(compile_simulator, plan, active))
        candidate = _found_candidate(plan, base_images.get("runtime"), session)
        if candidate is None:
            candidate = _new_candidate(plan, base_images, session, active, log, work, way)
        other.wait()
    if candidate.built:
        kept_ptx.keep_built(plan, candidate.reference, candidate.digest, active, work)
    session.log(f"smoke test of {plan.title}")
    kept = check(plan, candidate, session, active.seconds, work)
    if not kept.verdict.good:
        failed = kept.model_copy(update={"references": (candidate.reference,)})
        record.write(active.settings.state_dir, failed)
        require_good(kept, candidate.reference)
    ensure_tags(plan, candidate.reference)
    record.write(active.settings.state_dir, kept)
    candidates.remove(active.settings.state_dir, plan.name, plan.key)
    return Outcome(kept, built=candidate.built)


def _found_candidate(
    plan: Plan, base: docker.Image | None, session: BuildSession
) -> Candidate | None:
    """The candidate that the engine has, where a run of this machine that was stopped built it.

    Any registry can serve an image under that name, with the label of the key.
    """
    found = None if session.options.rebuild else find_candidate(plan)
    if found is None:
        return None
    if found.digest != candidates.digest_of(session.settings.state_dir, plan.name, plan.key):
        session.log(f"{plan.candidate} is not known to be built here; it is built again")
        return None
    session.log(f"{plan.candidate} exists; it is not built again")
    return Candidate(plan.candidate, found.digest, found.labels, base=base, built_here=True)


def _new_candidate(
    plan: Plan,
    base_images: dict[str, docker.Image],
    session: BuildSession,
    active: ActiveBuild,
    log: BuildLog,
    work: Path,
    way: Way,
) -> Candidate:
    """Build a candidate.  Raises like ``build_stages``."""
    recipe = plan.recipe
    if active.offline and not plan.debian.locked:
        raise FetchError(
            f"{recipe.name} installs Debian packages, and has no lock of them",
            "nothing is fetched (--offline)",
            f"`builder pin lock {recipe.name}` and `builder pin mirror {recipe.name}`, with a "
            "network",
        )
    session.log(f"building {plan.title} ({plan.short_key}); the full log is {log.path}")
    before = last_time(active.settings.state_dir, way, recipe.name)
    session.log(way.text + (f"; last time {before}" if before else ""))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    base = base_images.get("runtime")
    labels = build_labels(plan, base)
    stages = {"image": plan.candidate}
    options = anew(compiles=True) if session.options.rebuild else ()
    built = build_stages(plan, stages, labels, base_images, active, log, work, options)["image"]
    candidates.write(active.settings.state_dir, recipe.name, plan.key, built.image.digest)
    return Candidate(
        plan.candidate,
        built.digest,
        built.image.labels,
        str(log.path),
        now,
        built=True,
        base=base,
        way=way.name,
    )


def _require_digests(engine: docker.Engine) -> None:
    if not engine.containerd_store:
        raise WorldError(
            "Docker keeps its images in the classic store, without manifest digests",
            f"it uses {engine.driver}",
            'put {"features": {"containerd-snapshotter": true}} into /etc/docker/daemon.json and '
            "restart Docker",
        )
