"""A preset, or a recipe with a model, from its name to a server that answers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, islice
from pathlib import Path
from statistics import median
from typing import Literal
from uuid import uuid4

from builder.build.record import newest_good
from builder.checks.server import NotServingError, Server, ServerClient
from builder.core import sizes
from builder.core.errors import BuilderError, BusyError, FitError, UntriedError, WorldError
from builder.core.files import too_full
from builder.core.log import Log, duration
from builder.core.parallel import lines_of
from builder.core.settings import Settings
from builder.docker import buildx, containers, gpus
from builder.docker import engine as docker
from builder.docker.containers import TOOLKIT, Container
from builder.engines import families
from builder.engines.layout import LABEL_KEY
from builder.engines.servers import API_FLAVORS, ApiFlavor
from builder.presets import cards, choose, command, exports
from builder.presets.cards import Machine
from builder.presets.choose import AUTO, Question, driver_on, no_image, tried
from builder.presets.images import Images, Launch, RunImage, pull
from builder.presets.models import RESERVE, Located, Missing, Progress, download, located
from builder.presets.service import HOST, Run, Service, service
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
from simulator import gguf

# A service started in the engine: followed until it is healthy, removed where it fails.

LABEL_RUN = "builder.run"  # the label of a container: the identity of its run
LABEL_START = "builder.start"
"""The label of a container: the process that started it, by a name that no other has."""
ENDED = {"exited", "dead"}
HINTS = {
    containers.NO_GPU_DRIVER: containers.TOOLKIT,
    "port is already allocated": "choose another one: --port N",  # moby, portallocator
    "address already in use": "choose another one: --port N",
    "is already in use by container": "another `builder run` started it at the same time",
}  # the next step, by a part of Docker's message


@dataclass(frozen=True, slots=True)
class Found:
    """A container of that name."""

    container: str
    status: str
    run: str  # the identity of the run that started it; empty where builder did not start it
    port: int | None
    started_by: str
    image: str = ""
    key: str = ""  # the build key of its image, by its label

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.status == "running"

    @property
    def removable(self) -> bool:
        """Whether it is of an earlier run that has ended."""
        return self.status in ENDED and bool(self.run)


def existing(name: str) -> Found | None:
    """The container of that name; None where there is none."""
    done = docker.call("container", "inspect", "--format={{json .}}", name)
    if done.returncode != 0:
        return None
    found = json.loads(done.stdout)
    labels = found["Config"].get("Labels") or {}
    bindings = (found["HostConfig"].get("PortBindings") or {}).values()
    ports = [each["HostPort"] for binding in bindings for each in binding or ()]
    return Found(
        container=found["Id"],
        status=found["State"]["Status"],
        run=labels.get(LABEL_RUN, ""),
        port=next((int(each) for each in ports if each), None),
        started_by=labels.get(LABEL_START, ""),
        image=found["Config"]["Image"],
        key=labels.get(LABEL_KEY, ""),
    )


def identity(service: Service) -> str:
    """sha256 (hex) over all that decides how a service is started, apart from its port."""
    words = exports.words(replace(service, restart=None, published=0))
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def start_service(
    service: Service, flavor: ApiFlavor, seconds: float, log: Log, hint: str = ""
) -> float:
    """Start a service, and show its log until its health page answers; the seconds that it took.

    It then runs on.
    """
    name, token = service.name, uuid4().hex
    found = existing(name)
    if found is not None and not found.removable:
        stop = f"stop it: docker rm --force {name}"
        raise BusyError(f"there is a container {name} already", hint=stop)
    if found is not None:
        containers.remove(found.container)  # not by its name, which another process may take
    try:
        _run(service, token)
        hint = "; ".join(filter(None, ("the container is removed", hint)))
        return wait_until_healthy(service, flavor, seconds, log, hint)
    except BaseException:  # also an interrupt
        found = existing(name)
        if found is not None and found.started_by == token:
            containers.remove(found.container)
        raise


def _run(service: Service, token: str) -> None:
    run, *words = exports.words(replace(service, restart=None))
    labels = (f"--label={LABEL_RUN}={identity(service)}", f"--label={LABEL_START}={token}")
    done = docker.call(run, *labels, *words)
    if done.returncode != 0:
        known = (hint for text, hint in HINTS.items() if text in done.stderr)
        why = containers.reason_of(done.stderr)
        raise UntriedError("Docker cannot start the container", why, next(known, ""))


def wait_until_healthy(
    service: Service,
    flavor: ApiFlavor,
    seconds: float,
    log: Log,
    hint: str = "",
    *,
    lines: Literal["all", "0"] = "all",
) -> float:
    """Show the log of a service's container until its health page answers; the seconds it took.

    ``lines``: of the log so far.
    """
    container = Container(service.name)
    server = Server(container, ServerClient(service.url), replace(flavor, health=service.health))
    with _followed(service.name, log, lines):
        try:
            return server.wait(seconds)
        except NotServingError as error:
            raise UntriedError(f"{service.name} does not serve", str(error), hint) from error


@contextmanager
def _followed(name: str, log: Log, lines: str) -> Iterator[None]:
    follow = ("logs", "--follow", f"--tail={lines}", name)
    with (
        docker.stream(*follow, stderr=subprocess.STDOUT) as process,
        ThreadPoolExecutor(1) as reader,
    ):
        shown = reader.submit(_pass_on, lines_of(process), log)
        try:
            yield
        finally:
            process.terminate()
    if lines == "all":  # a server can answer before the client has its first line
        with docker.stream("logs", name, stderr=subprocess.STDOUT) as process:
            _pass_on(islice(lines_of(process), shown.result(), None), log)


def _pass_on(lines: Iterable[str], log: Log) -> int:
    passed = 0
    for line in lines:
        log(f"  {line.rstrip()}")
        passed += 1
    return passed


# All faults that prevent a run on this machine, the GPU's first.

KERNEL_MODULE = Path("/proc/driver/nvidia/version")
"""Exists where the kernel has NVIDIA's driver (its README, "The /proc interface")."""
ELSEWHERE = (
    "run it on the machine with the card (`builder export` writes files for it), or on the CPU, "
    "where the engine can: --cpu"
)
OTHERS = "`builder choose` shows the presets that run on this machine"
BUILD = "add the card's architecture to `arch` in [cuda] of the recipe, and build it"
NAMES = {"model": "model", "draft": "draft model", "mmproj": "projector"}


def require(name: str, faults: Sequence[BuilderError]) -> None:
    """Raise ``WorldError`` with all faults, each with its next step, if there are any."""
    if faults:
        texts = [
            ": ".join(filter(None, (each.what, each.why)))
            + (f"\n  -> {each.hint}" if each.hint else "")
            for each in faults
        ]
        raise WorldError(f"{name} cannot run here", "\n".join(texts))


def question_of(job: Launch) -> Question:
    """What is known of a run, for a machine without cards."""
    root, entries = job.catalog.root, [job.entry] if job.entry else []
    trials, refused, _ = tried(root, job.settings.state_dir, entries, [job.run.recipe.name])
    published = cards.known(root, {each.preset.card for each in entries})
    return Question(
        Machine(()),
        job.catalog,
        published,
        job.run.context or 0,
        trials,
        refused=refused,
        options=job.run.options,
        other_model="model" in job.wanted.given,
    )


def no_gpu(error: BuilderError) -> WorldError:
    """The fault of a machine whose cards nvidia-smi does not list.

    Without nvidia-smi nothing is known of the cards, even where the kernel has the driver.
    """
    if KERNEL_MODULE.exists():
        return WorldError(
            f"{error.what}, although NVIDIA's driver is loaded",
            error.why,
            "install nvidia-smi, which belongs to the driver (Debian: nvidia-smi)",
        )
    hint = "check what nvidia-smi prints" if shutil.which(gpus.COMMAND[0]) else ELSEWHERE
    return WorldError(error.what, error.why, hint)


def cards_of(
    here: Machine, job: Launch, card: str, question: Question
) -> tuple[tuple[int, ...], list[BuilderError]]:
    """The numbers of a machine's first cards that suffice, or why none does.

    ``card`` is a name of ``cards/``; ``auto``: any.  Where all cards of the machine are taken, no
    number is given, and Docker takes all.
    """
    run, numbers = job.run, tuple(range(len(here.cards)))
    if card != AUTO:
        wanted = cards.host_card(cards.load(job.catalog.root, card))
        numbers = tuple(number for number in numbers if here.cards[number] == wanted)
    if not numbers:
        have = ", ".join(each.name for each in here.cards)
        return (), [WorldError(f"this machine has no card {card}", hint=f"it has: {have}")]
    faults: list[BuilderError] = []
    oldest = driver_on(run.recipe, job.catalog, here.cards)
    if old := gpus.is_older(here.driver, oldest):
        what = f"the driver {here.driver} is too old: the image needs {oldest} or newer"
        faults.append(WorldError(what, hint=f"install NVIDIA's driver {oldest} or newer"))
    count = min(run.preset.cards if run.preset else 1, len(numbers))
    unfit: dict[str, str] = {}
    for group in combinations(numbers, count):
        found = tuple(here.cards[number] for number in group)
        asked = replace(question, machine=Machine(found, platform=here.platform))
        why = choose.faults(job.entry, asked) if job.entry else unfit_for_recipe(run, asked.machine)
        names = " and ".join(card.name for card in found)
        new = {f"{names}: {each}": OTHERS if job.entry else BUILD for each in why}
        if not new:
            return (group if len(here.cards) > count and not old else ()), faults
        unfit |= new
    return (), [*faults, *(WorldError(what, hint=hint) for what, hint in unfit.items())]


def unfit_for_recipe(run: Run, here: Machine) -> list[str]:
    """Why the image of a recipe does not run on the first card of a machine."""
    return [*no_image(run.recipe, here.cards[:1], here.platform, "the")]


def engine_faults(*, cpu: bool) -> Iterator[BuilderError]:
    """Whether the engine answers, and, where the run is not on the ``cpu``, has GPUs."""
    try:
        engine = docker.ask_engine()
        if not cpu and not engine.has_nvidia_runtime and not engine.has_nvidia_cdi:
            yield WorldError("Docker has neither NVIDIA's runtime nor GPUs by CDI", hint=TOOLKIT)
    except WorldError as error:
        yield error


def image_faults(image: RunImage, target: str) -> Iterator[BuilderError]:
    """Whether Docker lacks the image that the recipe asks for, and how to get it."""
    if image.what:
        yield WorldError(image.what, hint=image.hint)
    elif not image.local:
        pull = f"`builder run {target} --yes`, or docker pull {image.name}"
        what = f"the image {image.name} is published, and not in Docker"
        yield WorldError(what, hint=pull)


def file_faults(found: Located, target: str) -> Iterator[BuilderError]:
    """The models that are not here, with their size and how to get them."""
    for place, error in found.unusable.items():
        yield WorldError(f"the {NAMES[place]}: {error.what}", error.why, error.hint)
    for each in found.missing:
        size = f"; {sizes.shown(each.size)} to download" if each.size else ""
        why = f" ({each.why})" if each.why else ""
        what = f"the {NAMES[each.place]} {each.file.shown} is not here{size}{why}"
        yield WorldError(what, hint=each.commands(target))


def port_faults(service: Service) -> Iterator[BuilderError]:
    """Whether another program has the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, service.published))
        except OSError as error:
            what = f"port {service.published} of {HOST} cannot be used"
            yield WorldError(what, error.strerror or "", "choose another one: --port N")


def refusal(job: Launch, card: str) -> FitError | None:
    """Why ``builder choose`` would not name this run; None: nothing known speaks against it.

    ``card`` is a name of ``cards/``, whose driver is not known; ``auto``: only what holds on every
    card counts.  Raises ``UsageError`` for an unknown card, ``RecipeError``.
    """
    run, question = job.run, question_of(job)
    count = run.preset.cards if run.preset else 1
    here = None if card == AUTO else cards.machine_with(job.catalog.root, [card] * count)
    on_card = None if run.cpu else here
    why = [*filter(None, [question.refused.get(run.recipe.name)])]
    if job.entry is None:
        why += unfit_for_recipe(run, on_card) if on_card else []
    elif on_card:
        why += choose.faults(job.entry, replace(question, machine=on_card))
    else:
        why += choose.too_long(job.entry.preset, question)
    own = command.values_by_setting(run.options, run.recipe)
    most = _trained(job.wanted.given.get("model")) if not choose.stretches(own) else 0
    if most and (run.context or 0) > most:
        why.append(f"its model was trained for {most} tokens of context, not for {run.context}")
    if not why:
        return None
    where = f"on {card}" if on_card else "here"
    hint = f"`builder choose{f' --card {card}' if on_card else ''}` shows the presets that run"
    return FitError(f"{run.name} does not run {where}", "\n".join(dict.fromkeys(why)), hint)


def _trained(model: Path | None) -> int:
    if model is None:
        return 0
    try:
        with model.expanduser().open("rb") as stream:
            return gguf.read(stream).of_architecture("context_length") or 0
    except (OSError, gguf.NotGgufError):  # the model's own fault is reported elsewhere
        return 0


# From a name to a server that answers.

CORE_SECONDS = 7.4
"""For one compile step: 339, 368 and 464 steps took 22, 21 and 29 minutes on two cores
(studies/measurements.md)."""
REST = 60  # seconds of a build beside its compile steps: sources, image, checks


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was started, or ran already."""

    service: Service
    flavor: ApiFlavor
    seconds: float | None = None  # until it was healthy; None where it ran already


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
    another run, ``SpaceError`` for a disk; and like ``build``, ``download`` and ``start_service``.
    """
    run, target = job.run, job.wanted.target
    devices, faults = ((), []) if run.cpu else _devices(job, card)
    faults += (engine := [*engine_faults(cpu=run.cpu)])
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
        faults += port_faults(ready)
    else:
        try:
            ready = running_already(ready, there, job.wanted.port, image)
        except BusyError as error:
            errors.append(error)
        if not (errors or faults or lacking or files.unusable):
            stop = f"stop it: docker rm --force {ready.name}"
            wait_until_healthy(ready, flavor, seconds, job.log, stop, lines="0")
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
    faults += image_faults(image, target)
    faults += file_faults(files, target)
    require(run.name, faults)
    job.log(f"starting {image.name}")
    about = f"show {job.entry.name}" if job.entry else f"recipe explain {run.recipe.name}"
    hint = f"`builder {about}` has its known problems"
    return Running(ready, flavor, start_service(ready, flavor, seconds, job.log, hint))


def _devices(job: Launch, card: str) -> tuple[tuple[int, ...], list[BuilderError]]:
    try:
        here = cards.this_machine(job.catalog.root)
    except WorldError as error:
        return (), [no_gpu(error)]
    return cards_of(here, job, card, question_of(job))


def _flavor_of(run: Run) -> ApiFlavor:
    serve = families.serve_of(run.recipe)
    if serve is None:
        what = f"{run.recipe.name} does not say which API its server has"
        raise UntriedError(what, hint="name it in the recipe: api_flavor in [serve]")
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
    """The service of a container that runs, at its own port; ``port`` is the requested one."""
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
