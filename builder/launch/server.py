"""A preset, or a recipe with a model, from its name to a server that answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder import families
from builder.choose import needs
from builder.choose.needs import MemoryNeed
from builder.errors import BusyError, UntriedError
from builder.launch import check
from builder.launch.described import LaunchRequest, find_entry, models_directory, run_of
from builder.launch.download import Progress, download
from builder.launch.files import Missing, located
from builder.launch.start import Found, existing, identity, start, wait
from builder.platforms import architecture
from builder.presets.catalog import PresetEntry
from builder.presets.service import Files, Run, Service, service
from builder.recipes.catalog import Catalog
from builder.records import trials
from builder.records.record import newest_good
from builder.servers.api_flavor import API_FLAVORS, ApiFlavor
from builder.settings import Settings
from builder.tools import sizes
from builder.tools.docker import engine as docker
from builder.tools.docker import gpus
from builder.tools.log import Log, duration

FIRST_BUILD = "which takes half an hour on two cores the first time"  # README.md


@dataclass(frozen=True, slots=True)
class Launch:
    """What all steps of one command share."""

    catalog: Catalog
    wanted: LaunchRequest
    settings: Settings
    log: Log

    @property
    def models_dir(self) -> Path:
        """The models directory of the settings, as ``described`` has it."""
        return models_directory(self.settings)

    def trial_of(self, entry: PresetEntry) -> MemoryNeed | None:
        """The memory of a preset by its trial.  Raises like ``trials.known``."""
        name = entry.preset.recipe
        kept = newest_good(self.settings.state_dir, name)
        found = trials.known(self.catalog.root, [name], {name: kept} if kept else {})
        return needs.by_trial(entry, found)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was started, or ran already."""

    service: Service
    flavor: ApiFlavor
    seconds: float | None = None
    """Until it was healthy; None where it ran already."""


@dataclass(frozen=True, slots=True)
class Means:
    """How a launch gets what is missing."""

    build: Callable[[str], object]
    """Builds and checks the image of a recipe."""
    progress: Progress
    agrees: Callable[[Sequence[str]], bool]
    """Whether the user agrees to a list of builds and downloads."""


def launch(job: Launch, card: str, seconds: float, means: Means) -> Running:
    """Check this machine, start the server, and wait until it is healthy.

    If nothing else stands in the way, and the user agrees, the image is built and the models are
    downloaded.  Raises ``WorldError`` with all that is wrong, ``BusyError`` where the same run has
    another port or other options, and like a build, ``download`` and ``start``.
    """
    entry = find_entry(job.catalog, job.wanted)
    run = run_of(entry, job.catalog, job.wanted)
    asked = check.Asked(job.catalog, job.trial_of)
    chosen = check.Chosen() if run.cpu else check.choose_cards(run, entry, card, asked)
    image, no_image = check.image_of(run, job.settings)
    files, missing = located(run, job.models_dir, job.wanted.given)
    faults = [*chosen.faults, *check.engine_faults(cpu=run.cpu)]
    lacking = list(_lacking(job, run, image if no_image else "", missing))
    stuck = faults or not all(each.fetches for each in missing)
    if lacking and not stuck and means.agrees(lacking):
        if no_image:
            means.build(run.recipe.name)
            image, no_image = check.image_of(run, job.settings)
        files, missing = fetched(job, run, missing, means.progress)
    faults += [no_image] if no_image else []
    ready = _service(run, image, files, missing, job.wanted.port)
    faults += check.file_faults(missing, job.wanted.target)
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
    _pull(image, job.log)
    job.log(f"starting {image}")
    about = f"show {entry.name}" if entry else f"recipe explain {run.recipe.name}"
    hint = f"`builder {about}` has its known problems"
    return Running(ready, flavor, start(ready, flavor, seconds, job.log, hint))


def _lacking(job: Launch, run: Run, image: str, missing: Sequence[Missing]) -> Iterator[str]:
    """What has to be built and downloaded, with what it costs; ``image``: one that is not there."""
    if image:
        kept = newest_good(job.settings.state_dir, run.recipe.name)
        took = kept.seconds.get(f"build {run.recipe.name}") if kept else None
        text = f"which took {duration(took)} last time" if took else FIRST_BUILD
        yield f"build {image}, {text}"
    for each in missing:
        yield f"download {each.file.shown}: {sizes.shown(each.size)} to {job.models_dir}"


def running_already(service: Service, there: Found, port: int | None) -> Service:
    """The service of a container that runs, at its own port; ``port`` is that which is asked for.

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


def fetched(
    job: Launch, run: Run, missing: list[Missing], progress: Progress
) -> tuple[Files, list[Missing]]:
    """Download what is missing; the models that are here then.  Raises like ``download``."""
    directory = job.models_dir
    for each in missing:
        if each.fetches:
            job.log(f"downloading {each.file.shown}: {sizes.shown(each.size)} to {directory}")
    download([fetch for each in missing for fetch in each.fetches], directory, progress)
    return located(run, directory, job.wanted.given)


def flavor_of(run: Run) -> ApiFlavor:
    """The API of a run's server.  Raises ``UntriedError`` where the recipe does not name it."""
    family = families.ENGINES[run.recipe.family]
    serve = family.complete(run.recipe).serve or family.serve
    if serve is None:
        raise UntriedError(
            f"{run.recipe.name} does not say which API its server has",
            hint="name it in the recipe: api_flavor in [serve]",
        )
    return API_FLAVORS[serve.api_flavor]


def _service(
    run: Run, image: str, files: Files, missing: list[Missing], port: int | None
) -> Service:
    """The service; what is missing has a place, so that the other faults are reported, too."""
    places = {**files.places, **{each.place: f"/{each.place}" for each in missing}}
    return service(run, image, replace(files, places=places), published=port)


def _pull(image: str, log: Log) -> None:
    if docker.image(image) is None:
        log(f"pulling {image}")
        docker.pull(image, f"linux/{architecture(docker.engine().architecture)}")
