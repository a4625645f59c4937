"""A preset, or a recipe with a model, from its name to a server that answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from builder.build.record import newest_good
from builder.core import sizes
from builder.core.errors import BuilderError, BusyError, UntriedError, WorldError
from builder.core.files import too_full
from builder.core.log import duration
from builder.core.settings import Settings
from builder.docker import buildx
from builder.docker import engine as docker
from builder.engines import families
from builder.engines.api_flavor import API_FLAVORS, ApiFlavor
from builder.presets import launch_check, machine
from builder.presets.described import Launch
from builder.presets.download import RESERVE, Progress, download
from builder.presets.files import Located, Missing, located
from builder.presets.images import Images, RunImage, pull
from builder.presets.service import Run, Service, service
from builder.presets.start import Found, existing, identity, start, wait
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe

CORE_SECONDS = 7.4
"""For one compile step: 339, 368 and 464 steps took 22, 21 and 29 minutes on two cores
(docs/measurements.md)."""
REST = 60
"""Seconds of a build beside its compile steps: sources, image, checks."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was started, or ran already."""

    service: Service
    flavor: ApiFlavor
    seconds: float | None = None
    """Until it was healthy; None where it ran already."""


def launch(
    job: Launch,
    card: str,
    seconds: float,
    *,
    build: Callable[[str], object],
    progress: Progress,
    agrees: Callable[[Sequence[str]], bool],
) -> Running:
    """Check this machine, start the server, and wait until it is healthy.

    If nothing else stands in the way, and the user ``agrees`` to a list of the steps, ``build``
    builds and checks the image of a recipe, or it is pulled, and the models are downloaded.  Raises
    ``WorldError`` with all faults; where there is one alone, ``BusyError`` for a container of
    another run, ``SpaceError`` for a disk; and like ``build``, ``download`` and ``start``.
    """
    run, target = job.run, job.wanted.target
    devices, faults = ((), []) if run.cpu else _devices(job, card)
    faults += (engine := [*launch_check.engine_faults(cpu=run.cpu)])
    images = Images(job.catalog, run.recipe, job.settings, job.log)
    image = _image(images, old=job.wanted.old)
    files = located(run, job.models_dir, job.wanted.given)
    flavor = _flavor_of(run)
    cdi = not run.cpu and not engine and not docker.engine().has_nvidia_runtime

    def described() -> Service:
        # A missing model gets a path, so that the other faults are reported, too.
        places = {**files.files.places, **{place: f"/{place}" for place in files.lacking}}
        own = replace(files.files, places=places)
        found = service(run, image.name, own, published=job.wanted.port)
        return replace(found, devices=devices, cdi=cdi)

    lacking = [*_to_obtain(job, images, image), *(each.task for each in files.missing)]
    ready = described()
    there = existing(ready.name) if not engine else None
    errors: list[BuilderError] = []
    if there is None or there.removable:
        faults += launch_check.port_faults(ready)
    else:
        try:
            ready = running_already(ready, there, job.wanted.port, image)
        except BusyError as error:
            errors.append(error)
        if not (errors or faults or lacking or files.unusable):
            stop = f"stop it: docker rm --force {ready.name}"
            wait(ready, flavor, seconds, job.log, stop, lines="0")
            return Running(ready, flavor)
    errors += too_full(_space(job, image, files)) if not engine else ()
    fetchable = all(each.fetches for each in files.missing) and not files.unusable
    obtainable = fetchable and (not image.what or image.builds)
    if len(errors) == 1 and not faults and obtainable:
        raise errors[0]
    if not (faults or errors) and obtainable:
        for note in ready.caveats:
            job.log(note)
        if lacking and agrees(lacking):
            image = _obtained(images, image, build)
            files = fetched(job, files.missing, progress)
            ready = described()
    faults += errors
    faults += launch_check.image_faults(image, target)
    faults += launch_check.file_faults(files, target)
    launch_check.require(run.name, faults)
    job.log(f"starting {image.name}")
    about = f"show {job.entry.name}" if job.entry else f"recipe explain {run.recipe.name}"
    hint = f"`builder {about}` has its known problems"
    return Running(ready, flavor, start(ready, flavor, seconds, job.log, hint))


def _devices(job: Launch, card: str) -> tuple[tuple[int, ...], list[BuilderError]]:
    try:
        here = machine.present(job.catalog.root)
    except WorldError as error:
        return (), [launch_check.no_gpu(error)]
    return launch_check.cards_of(here, job, card, launch_check.question_of(job))


def _flavor_of(run: Run) -> ApiFlavor:
    serve = families.serve_of(run.recipe)
    if serve is None:
        raise UntriedError(
            f"{run.recipe.name} does not say which API its server has",
            hint="name it in the recipe: api_flavor in [serve]",
        )
    return API_FLAVORS[serve.api_flavor]


def _image(images: Images, *, old: bool) -> RunImage:
    """The image of a run; where no engine answers, which is a fault of its own, its name."""
    try:
        image = images.find(old=old)
    except WorldError:
        return RunImage(images.tagged)
    if image.note:
        images.log(image.note)
    return image


def _obtained(images: Images, image: RunImage, build: Callable[[str], object]) -> RunImage:
    if image.what:
        build(images.recipe.name)
    elif not image.local:
        pull(images, image.name)
    else:
        return image
    return images.find(old=not image.what)


def _to_obtain(job: Launch, images: Images, image: RunImage) -> Iterator[str]:
    """The build or the pull of the image; nothing where Docker has it."""
    if image.what:
        took = build_time(job.catalog, job.run.recipe, job.settings)
        yield f"build {images.tagged}, {took}; {image.what}"
    elif not image.local:  # what Docker has of its layers is not known
        yield f"pull {image.name}" + (f": at most {sizes.shown(image.size)}" if image.size else "")


def build_time(catalog: Catalog, recipe: Recipe, settings: Settings) -> str:
    """How long a build takes: as long as the last one here, else by its compile steps.

    Where a recipe does not give its steps, the other recipes of its family do.
    """
    kept = newest_good(settings.state_dir, recipe.name)
    took = kept.build_seconds if kept else None
    if took is not None:
        return f"which took {duration(took)} last time"
    if not families.ENGINES[recipe.family].uses_ccache:
        return "which compiles nothing"
    others = [each.recipe for each in catalog.engines.values() if each.recipe is not None]
    known = [each.build.steps for each in others if each.family == recipe.family]
    steps = recipe.build.steps or round(median([*filter(None, known)] or [0]))
    if not steps:
        return "which compiles for a time that is not known"
    cores = settings.jobs or os.cpu_count() or 1
    minutes = round((REST + steps * CORE_SECONDS / cores) / 60)
    on = f"{cores} cores" if cores > 1 else "one core"
    why = f"{steps} compile steps" if recipe.build.steps else "as similar recipes"
    return f"which takes about {max(minutes, 1)} min on {on}: {why}"


def _space(job: Launch, image: RunImage, files: Located) -> Iterator[tuple[Path, float, str]]:
    """The disk space that the image and the models need, as ``too_full`` takes it.

    A pull needs more than its download, because Docker unpacks it: how much is not known.
    """
    engine, recipe = docker.engine(), job.run.recipe
    if image.what and image.builds and buildx.builder(job.settings.buildx).is_engine:
        yield engine.root, recipe.build.disk, f"the build of {recipe.name}"
    elif not image.local:
        yield engine.root, image.size / 2**30, f"the download of {image.name}"
    left = sum(fetch.left for each in files.missing for fetch in each.fetches)
    if left:
        yield job.models_dir, left / 2**30 + RESERVE, "the download of the models"


def running_already(service: Service, there: Found, port: int | None, image: RunImage) -> Service:
    """The service of a container that runs, at its own port; ``port`` is the requested one.

    Raises ``BusyError`` where the container belongs to another run, or its image is not the
    requested one, or not of the recipe as it is now.
    """
    if not there.running:
        why = f"it is {there.status}"
    elif there.run != identity(service):
        why = "it has other options" if there.run else "`builder run` did not start it"
        if there.run and there.image != service.image:
            why = f"it runs the image {there.image}, and not {service.image}"
    elif image.what:
        why = image.what
    elif image.key and there.key != image.key:
        why = f"its image has the build key {there.key[:12]}, and {image.name} has {image.key[:12]}"
    elif there.port is None or port not in {None, there.port}:
        why = f"its port is {there.port}"
    else:
        return replace(service, published=there.port)
    raise BusyError(
        f"the container {service.name} {'runs' if there.running else 'exists'} already",
        why,
        f"stop it first: docker rm --force {service.name}",
    )


def fetched(job: Launch, missing: Sequence[Missing], progress: Progress) -> Located:
    """Download the missing models, and find all again.  Raises like ``download``."""
    for each in missing:
        if each.fetches:
            size = sizes.shown(each.size)
            job.log(f"downloading {each.file.shown}: {size} to {job.models_dir}")
    fetches = [fetch for each in missing for fetch in each.fetches]
    download(fetches, job.models_dir, progress)
    return located(job.run, job.models_dir, job.wanted.given)
