"""A preset, or a recipe with a model, from its name to a server that answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder import families
from builder.errors import BusyError, UntriedError
from builder.launch import check, costs
from builder.launch.check import RunImage
from builder.launch.described import LaunchRequest, find_entry, models_directory, run_of
from builder.launch.download import Progress, download
from builder.launch.files import Located, Missing, located
from builder.launch.start import Found, existing, identity, start, wait
from builder.platforms import architecture
from builder.presets.catalog import PresetEntry
from builder.presets.service import Run, Service, service
from builder.recipes.catalog import Catalog
from builder.records import trials
from builder.records.record import newest_good
from builder.servers.api_flavor import API_FLAVORS, ApiFlavor
from builder.settings import Settings
from builder.smoke.verdict import PresetUse
from builder.tools import sizes
from builder.tools.docker import engine as docker
from builder.tools.docker import gpus
from builder.tools.log import Log


@dataclass(frozen=True, slots=True)
class Launch:
    """The state that all steps of one command share."""

    catalog: Catalog
    wanted: LaunchRequest
    settings: Settings
    log: Log

    @property
    def models_dir(self) -> Path:
        """The models directory, as ``described`` has it."""
        return models_directory(self.settings)

    def trial_of(self, entry: PresetEntry) -> PresetUse | None:
        """The trial of a preset.  Raises like ``trials.known``."""
        name = entry.preset.recipe
        kept = newest_good(self.settings.state_dir, name)
        found = trials.known(self.catalog.root, [name], {name: kept} if kept else {})
        return found.of(entry)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was started, or ran already."""

    service: Service
    flavor: ApiFlavor
    seconds: float | None = None
    """Until it was healthy; None where it ran already."""


@dataclass(frozen=True, slots=True)
class Means:
    """The ways to get a missing image and missing models."""

    build: Callable[[str], object]
    """Builds and checks the image of a recipe."""
    progress: Progress
    agrees: Callable[[Sequence[str]], bool]
    """Whether the user agrees to a list of builds and downloads."""


def launch(job: Launch, card: str, seconds: float, means: Means) -> Running:
    """Check this machine, start the server, and wait until it is healthy.

    If nothing else stands in the way, and the user agrees, the image is built and the models are
    downloaded.  Raises ``WorldError`` with all faults, ``BusyError`` where the same run has
    another port or other options, and like a build, ``download`` and ``start``.
    """
    entry = find_entry(job.catalog, job.wanted)
    run = run_of(entry, job.catalog, job.wanted)
    asked = check.Asked(job.catalog, job.trial_of, "model" in job.wanted.given)
    chosen = check.Chosen() if run.cpu else check.choose_cards(run, entry, card, asked)
    image = check.image_of(run, job.settings)
    files = located(run, job.models_dir, job.wanted.given)
    faults = [*chosen.faults, *check.engine_faults(cpu=run.cpu)]
    lacking = [*costs.of_image(job.catalog, run.recipe, image, job.settings, job.log)]
    lacking += costs.of_files(files.missing, job.models_dir)
    stuck = faults or files.unusable or not all(each.fetches for each in files.missing)
    if lacking and not stuck and means.agrees(lacking):
        image = _obtained(run, image, job, means)
        files = fetched(job, run, files.missing, means.progress)
    faults += check.image_faults(image, job.wanted.target)
    ready = _service(run, image.name, files, job.wanted.port)
    faults += check.file_faults(files, job.wanted.target)
    flavor = flavor_of(run)
    if not faults:
        cdi = not run.cpu and not gpus.has_runtime()
        ready = replace(ready, devices=chosen.devices, cdi=cdi)
        there = existing(ready.name)
        if there is not None and there.running:
            ready = running_already(ready, there, job.wanted.port)
            stop = f"stop it: docker rm --force {ready.name}"
            wait(ready, flavor, seconds, job.log, stop, lines="0")
            return Running(ready, flavor)
    faults += check.port_faults(ready)
    check.require(run.name, faults)
    job.log(f"starting {image.name}")
    about = f"show {entry.name}" if entry else f"recipe explain {run.recipe.name}"
    hint = f"`builder {about}` has its known problems"
    return Running(ready, flavor, start(ready, flavor, seconds, job.log, hint))


def _obtained(run: Run, image: RunImage, job: Launch, means: Means) -> RunImage:
    """The image, built or pulled where Docker does not have it."""
    if image.fault is not None:
        means.build(run.recipe.name)
        return check.image_of(run, job.settings)
    if image.published:
        job.log(f"pulling {image.name}")
        docker.pull(image.name, f"linux/{architecture(docker.engine().architecture)}")
    return replace(image, published=False)


def running_already(service: Service, there: Found, port: int | None) -> Service:
    """The service of a container that runs, at its own port; ``port`` is the requested one.

    Raises ``BusyError`` where the container belongs to another run.
    """
    if there.run != identity(service):
        why = "it has other options" if there.run else "`builder run` did not start it"
    elif there.port is None or port not in {None, there.port}:
        why = f"its port is {there.port}"
    else:
        return replace(service, published=there.port)
    raise BusyError(
        f"the container {service.name} runs already",
        why,
        f"stop it first: docker rm --force {service.name}",
    )


def fetched(job: Launch, run: Run, missing: Sequence[Missing], progress: Progress) -> Located:
    """Download the missing models, and find all again.  Raises like ``download``."""
    directory = job.models_dir
    for each in missing:
        if each.fetches:
            job.log(f"downloading {each.file.shown}: {sizes.shown(each.size)} to {directory}")
    download([fetch for each in missing for fetch in each.fetches], directory, progress)
    return located(run, directory, job.wanted.given)


def flavor_of(run: Run) -> ApiFlavor:
    """The API of a run's server.  Raises ``UntriedError`` where the recipe does not name it."""
    serve = families.serve_of(run.recipe)
    if serve is None:
        raise UntriedError(
            f"{run.recipe.name} does not say which API its server has",
            hint="name it in the recipe: api_flavor in [serve]",
        )
    return API_FLAVORS[serve.api_flavor]


def _service(run: Run, image: str, found: Located, port: int | None) -> Service:
    """The service; a missing model gets a path, so that the other faults are reported, too."""
    places = {**found.files.places, **{place: f"/{place}" for place in found.lacking}}
    return service(run, image, replace(found.files, places=places), published=port)
