"""A preset, or a recipe with a model, from its name to a server that answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from builder import families
from builder.errors import BuilderError, BusyError, UntriedError, WorldError
from builder.launch import check, costs
from builder.launch.described import LaunchRequest, find_entry, followed, models_directory, run_of
from builder.launch.download import RESERVE, Progress, download
from builder.launch.files import Located, Missing, located
from builder.launch.images import Images, RunImage, pull
from builder.launch.start import Found, existing, identity, start, wait
from builder.presets.catalog import PresetEntry
from builder.presets.service import Run, Service, service
from builder.recipes.catalog import Catalog
from builder.records import trials
from builder.records.record import newest_good
from builder.servers.api_flavor import API_FLAVORS, ApiFlavor
from builder.settings import Settings
from builder.smoke.verdict import PresetUse
from builder.tools import sizes
from builder.tools.docker import buildx
from builder.tools.docker import engine as docker
from builder.tools.files import too_full
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
    downloaded.  Raises ``WorldError`` with all faults; where there is one alone, ``BusyError``
    for a container of another run, ``SpaceError`` for a disk; and like a build, ``download`` and
    ``start``.
    """
    job = replace(job, wanted=followed(job.catalog, job.wanted, job.models_dir))
    entry = find_entry(job.catalog, job.wanted)
    run = run_of(entry, job.catalog, job.wanted)
    asked = check.Asked(job.catalog, job.trial_of, "model" in job.wanted.given)
    chosen = check.Chosen() if run.cpu else check.choose_cards(run, entry, card, asked)
    faults = [*chosen.faults, *(engine := [*check.engine_faults(cpu=run.cpu)])]
    images = Images(job.catalog, run.recipe, job.settings, job.log)
    image = _image(images, old=job.wanted.old)
    files = located(run, job.models_dir, job.wanted.given)
    flavor = flavor_of(run)
    cdi = not run.cpu and not engine and not docker.engine().has_nvidia_runtime

    def described() -> Service:
        found = _service(run, image.name, files, job.wanted.port)
        return replace(found, devices=chosen.devices, cdi=cdi)

    lacking = [*costs.of_image(job.catalog, run.recipe, images, image, job.settings)]
    lacking += costs.of_files(files.missing, job.models_dir)
    ready = described()
    there = existing(ready.name) if not engine else None
    errors: list[BuilderError] = []
    if there is None or there.removable:
        faults += check.port_faults(ready)
    else:
        try:
            ready = running_already(ready, there, job.wanted.port, image)
        except BusyError as error:
            errors.append(error)
        if not (errors or faults or lacking or files.unusable):
            stop = f"stop it: docker rm --force {ready.name}"
            wait(ready, flavor, seconds, job.log, stop, lines="0")
            return Running(ready, flavor)
    errors += too_full(_space(job, run, image, files)) if not engine else ()
    if len(errors) == 1 and not faults and _can_obtain(image, files):
        raise errors[0]
    if not (faults or errors) and _can_obtain(image, files):
        for note in ready.caveats:
            job.log(note)
        if lacking and means.agrees(lacking):
            image = _obtained(images, image, means)
            files = fetched(job, run, files.missing, means.progress)
            ready = described()
    faults += (check.Fault(f"{each.what}: {each.why}", each.hint) for each in errors)
    faults += check.image_faults(image, job.wanted.target)
    faults += check.file_faults(files, job.wanted.target)
    check.require(run.name, faults)
    job.log(f"starting {image.name}")
    about = f"show {entry.name}" if entry else f"recipe explain {run.recipe.name}"
    hint = f"`builder {about}` has its known problems"
    return Running(ready, flavor, start(ready, flavor, seconds, job.log, hint))


def _image(images: Images, *, old: bool) -> RunImage:
    """The image of a run; where no engine answers, which is a fault of its own, its name."""
    try:
        image = images.find(old=old)
    except WorldError:
        return RunImage(images.tagged)
    if image.note:
        images.log(image.note)
    return image


def _can_obtain(image: RunImage, files: Located) -> bool:
    """Whether the image and the models are here, or can be built, pulled or downloaded."""
    fetches = all(each.fetches for each in files.missing)
    return fetches and not files.unusable and (not image.what or image.builds)


def _space(
    job: Launch, run: Run, image: RunImage, files: Located
) -> Iterator[tuple[Path, float, str]]:
    """The disk space that the image and the models need, as ``too_full`` takes it.

    A pull needs more than its download, because Docker unpacks it: how much is not known.
    """
    engine = docker.engine()
    if image.what and image.builds and buildx.builder(job.settings.buildx).is_engine:
        yield engine.root, run.recipe.build.disk, f"the build of {run.recipe.name}"
    elif not image.local:
        yield engine.root, image.size / 2**30, f"the download of {image.name}"
    left = sum(fetch.left for each in files.missing for fetch in each.fetches)
    if left:
        yield job.models_dir, left / 2**30 + RESERVE, "the download of the models"


def _obtained(images: Images, image: RunImage, means: Means) -> RunImage:
    """The image, built or pulled where Docker does not have it."""
    if image.what:
        means.build(images.recipe.name)
    elif not image.local:
        pull(images, image.name)
    else:
        return image
    return images.find(old=not image.what)


def running_already(
    service: Service, there: Found, port: int | None, image: RunImage | None = None
) -> Service:
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
    elif image and image.what:
        why = image.what
    elif image and image.key and there.key != image.key:
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
