"""From a resolved recipe to an image with a good verdict: the stages, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.errors import BuilderError, FetchError, UntriedError, WorldError
from builder.images.bases import ensure_bases_of
from builder.images.build import anew
from builder.images.check import Candidate, check, check_again, find_verified, require_good
from builder.images.log import BuildLog, new_log
from builder.images.names import build_labels, ensure_tags, find_candidate, find_image
from builder.images.session import ActiveBuild, BuildOptions, Reporter
from builder.images.stages import build_stages, require_disk
from builder.images.way import Way, last_time, require_emulators, way_of
from builder.plan.rendered import EngineImage
from builder.records import record
from builder.records.record import Record
from builder.tools.docker import engine as docker
from builder.tools.files import named_lock, require_space, workspace

WORK_SPACE = 2.0  # GiB in the cache directory: CUDA's wheels, the source, a saved image


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record of an image, and what this run did for it."""

    record: Record
    built: bool
    checked: bool = True


def build(image: EngineImage, options: BuildOptions, reporter: Reporter) -> Outcome:
    """Build an image, check it and give it its names; or find it already there.

    Raises a ``BuilderError`` of the kind that says what went wrong; ``SmokeError`` when the image
    was built and fails a check.
    """
    _require_digests(docker.engine())
    settings, name = options.settings, image.plan.name
    settings.require_directories()
    known = _known(image, _found(image, options), options)
    if known is not None:
        return known
    with named_lock(settings.cache_dir, name), workspace(settings.cache_dir) as work:
        found = _found(image, options)  # another run may have built it meanwhile
        known = _known(image, found, options)
        if known is not None:
            return known
        if found is not None:
            reporter.log(f"{image.title} is built already; running its smoke test again")
            kept = check_again(image, found, options, reporter, work)
            require_good(kept, image.references[0])
            ensure_tags(image, image.references[0])
            return Outcome(kept, built=False)
        require_disk(options, image.plan.recipe.build.disk, f"the build of {image.title}")
        require_space(work, WORK_SPACE, f"the inputs of {name}")
        with new_log(settings.state_dir, name) as log:
            return _build(image, ActiveBuild(options, reporter), log, work)


def build_all(
    images: Sequence[EngineImage], options: BuildOptions, reporter: Reporter
) -> list[Outcome | BuilderError]:
    """Build each image of a recipe, as ``build`` does; one that fails does not stop the others.

    The error of one that failed stands at its place.
    """
    results: list[Outcome | BuilderError] = []
    for image in images:
        try:
            results.append(build(image, options, reporter))
        except BuilderError as error:
            if len(images) > 1:
                reporter.log(f"{image.title} failed: {error.what}")
            results.append(error)
    return results


def require_all(images: Sequence[EngineImage], results: Sequence[object]) -> None:
    """Raise the error of an image that failed; of several images, one that names each of those.

    A check that could not be run counts less than any other failure.
    """
    failed = [
        (image, result)
        for image, result in zip(images, results, strict=True)
        if isinstance(result, BuilderError)
    ]
    if not failed:
        return
    _, worst = min(failed, key=lambda each: isinstance(each[1], UntriedError))
    if len(images) == 1:
        raise worst
    why = "\n".join(f"{image.platform}: {error}" for image, error in failed)
    name = images[0].plan.name
    raise type(worst)(f"{len(failed)} of {len(images)} images of {name} failed", why)


def _found(image: EngineImage, options: BuildOptions) -> docker.Image | None:
    """The image if the engine has it and no rebuild is requested."""
    return None if options.rebuild else find_image(image)


def _known(image: EngineImage, found: docker.Image | None, options: BuildOptions) -> Outcome | None:
    """The outcome if the image that was found is verified."""
    kept = find_verified(image, found, options.settings)
    if found is None or kept is None:
        return None
    ensure_tags(image, image.references[0], found.names)
    return Outcome(kept, built=False, checked=False)


def _build(image: EngineImage, active: ActiveBuild, log: BuildLog, work: Path) -> Outcome:
    """Build or find a candidate, check it, and tag it if it is good."""
    way = way_of(image.plan.platforms, active.settings)
    require_emulators(way, active.settings)
    base_images = ensure_bases_of(image, active, log)
    candidate = _found_candidate(image, base_images.get("runtime"), active)
    if candidate is None:
        candidate = _new_candidate(image, base_images, active, log, work, way)
    active.reporter.log(f"smoke test of {image.title}")
    kept = check(image, candidate, active, work)
    if not kept.verdict.good:
        failed = kept.model_copy(update={"references": (candidate.reference,)})
        record.write(active.settings.state_dir, failed)
        require_good(kept, candidate.reference)
    ensure_tags(image, candidate.reference)
    record.write(active.settings.state_dir, kept)
    return Outcome(kept, built=candidate.built)


def _found_candidate(
    image: EngineImage, base: docker.Image | None, active: ActiveBuild
) -> Candidate | None:
    """The candidate that the engine has: baked elsewhere, or built by a run that was stopped."""
    found = None if active.options.rebuild else find_candidate(image)
    if found is None:
        return None
    active.reporter.log(f"{image.candidate} exists; it is not built again")
    return Candidate(image.candidate, found.digest, found.labels, base=base)


def _new_candidate(
    image: EngineImage,
    base_images: dict[str, docker.Image],
    active: ActiveBuild,
    log: BuildLog,
    work: Path,
    way: Way,
) -> Candidate:
    """Build a candidate.  Raises like ``build_stages``."""
    recipe = image.plan.recipe
    if active.options.offline and not image.plan.debian.locked:
        raise FetchError(
            f"{recipe.name} installs Debian packages, and has no lock of them",
            "nothing is fetched (--offline)",
            f"`builder pin lock {recipe.name}` and `builder pin mirror {recipe.name}`, with a "
            "network",
        )
    active.reporter.log(f"building {image.title} ({image.short_key}); the full log is {log.path}")
    before = last_time(active.settings.state_dir, way, recipe.name)
    active.reporter.log(way.text + (f"; last time {before}" if before else ""))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    base = base_images.get("runtime")
    labels = build_labels(image, base)
    stages = {"image": image.candidate}
    options = anew(compiles=True) if active.options.rebuild else ()
    built = build_stages(image, stages, labels, base_images, active, log, work, options)["image"]
    return Candidate(
        image.candidate,
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
