"""A preset, or a recipe with a model, from its name to a server that answers."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median

from builder.build.record import newest_good
from builder.core import sizes
from builder.core.errors import BuilderError, BusyError, FitError, UntriedError, WorldError
from builder.core.files import too_full
from builder.core.log import Log, duration
from builder.core.settings import Settings
from builder.docker import buildx, gpus
from builder.docker import engine as docker
from builder.docker.containers import TOOLKIT
from builder.engines import families
from builder.engines.servers import ApiFlavor, flavor_of
from builder.presets import cards, choose, command, servers
from builder.presets.cards import Machine
from builder.presets.choose import AUTO, Question, driver_on, no_image, tried
from builder.presets.images import Images, Launch, RunImage, prepared, pull, requested, write_key
from builder.presets.models import RESERVE, Located, Missing, Progress, download, located
from builder.presets.servers import Found
from builder.presets.service import Run, Service
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
from simulator import gguf

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
    trials, refused = tried(root, job.settings.state_dir, entries, [job.run.recipe.name])
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
        why = (
            choose.faults(job.entry, asked) if job.entry else _unfit_for_recipe(run, asked.machine)
        )
        names = " and ".join(card.name for card in found)
        new = {f"{names}: {each}": OTHERS if job.entry else BUILD for each in why}
        if not new:
            return (group if len(here.cards) > count and not old else ()), faults
        unfit |= new
    return (), [*faults, *(WorldError(what, hint=hint) for what, hint in unfit.items())]


def _unfit_for_recipe(run: Run, here: Machine) -> list[str]:
    return [*no_image(run.recipe, here.cards[:1], here.platform, "the")]


def _engine_faults(*, cpu: bool) -> Iterator[BuilderError]:
    try:
        engine = docker.ask_engine()
        if not cpu and not engine.has_nvidia_runtime and not engine.has_nvidia_cdi:
            yield WorldError("Docker has neither NVIDIA's runtime nor GPUs by CDI", hint=TOOLKIT)
    except WorldError as error:
        yield error


def _image_faults(image: RunImage, target: str) -> Iterator[BuilderError]:
    if image.what:
        yield WorldError(image.what, hint=image.hint)
    elif not image.local:
        pull = f"`builder run {target} --yes`, or docker pull {image.name}"
        what = f"the image {image.name} is published, and not in Docker"
        yield WorldError(what, hint=pull)


def _file_faults(found: Located, target: str) -> Iterator[BuilderError]:
    for place, error in found.unusable.items():
        yield WorldError(f"the {NAMES[place]}: {error.what}", error.why, error.hint)
    for each in found.missing:
        size = f"; {sizes.shown(each.size)} to download" if each.size else ""
        why = f" ({each.why})" if each.why else ""
        what = f"the {NAMES[each.place]} {each.file.shown} is not here{size}{why}"
        yield WorldError(what, hint=each.commands(target))


def port_faults(service: Service) -> Iterator[BuilderError]:
    """Whether another program has the port, or the machine lacks the address."""
    family = socket.AF_INET6 if ":" in service.listen else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((service.listen, service.published))
        except OSError as error:
            what = f"port {service.published} of {service.listen} cannot be used"
            why, hint = error.strerror or "", "choose another one: --port N"
            if error.errno == errno.EADDRNOTAVAIL:
                hint = "name an address of this machine: --listen ADDRESS"
            with suppress(WorldError):  # an engine that does not answer is a fault of its own
                for each in servers.all_servers():
                    if each.running and each.port == service.published:
                        why, hint = f"{each.name} has it", f"{each.stop}; or {hint}"
            yield WorldError(what, why, hint)


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
        why += _unfit_for_recipe(run, on_card) if on_card else []
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
    replaces: Found | None = None,
    start: bool = True,
) -> Running:
    """Check this machine, start the server, and wait until it is healthy.

    A server that it ``replaces`` ends when all else is ready, and runs on if the new one fails.
    Without ``start`` only the image and the models are obtained.

    If nothing else stands in the way, and the user ``agrees`` to a list of the steps, ``build``
    builds and checks the image of a recipe, or it is pulled, and the models are downloaded.  Raises
    ``WorldError`` with all faults; where there is one alone, ``BusyError`` for a container of
    another run, ``SpaceError`` for a disk; and like ``build``, ``download`` and ``start_service``.
    """
    run, target = job.run, job.wanted.target
    cpu = run.cpu or not start
    devices, faults = ((), []) if cpu else _devices(job, card)
    faults += (engine := [*_engine_faults(cpu=cpu)])
    images = Images(job.catalog, run.recipe, job.settings, job.log)
    image = _image(images, old=job.wanted.old)
    files = located(run, job.models_dir, job.wanted.given)
    flavor = _flavor_of(run)
    cdi = not cpu and not engine and not docker.engine().has_nvidia_runtime
    name = replaces.name if replaces else "" if engine else servers.name_of(job)

    def described() -> Service:
        # A missing model gets a path, so that the other faults are reported, too.
        unnamed = [] if start or "{model}" not in command.known_options(run.recipe) else ["model"]
        lacks = {place: f"/{place}" for place in (*unnamed, *files.lacking)}
        places = {**lacks, **files.files.places}
        own = replace(files.files, places=places)
        found = requested(job, image.name, own)
        return replace(found, name=name or found.name, devices=devices, cdi=cdi)

    lacking = [*_to_obtain(job, images, image), *(each.task for each in files.missing)]
    ready = described()
    free = replaces is None and start  # the server that it replaces has the name, and the port
    there = servers.existing(ready.name) if free and not engine else None
    errors: list[BuilderError] = []
    if there is None or there.removable:
        faults += port_faults(ready) if free else ()
    else:
        try:
            changed = job.key is not None and there.key_copy not in {"", str(job.key_copy)}
            ready = running_already(ready, there, job.wanted.port, image, key_changed=changed)
        except BusyError as error:
            errors.append(error)
        if not (errors or faults or lacking or files.unusable):
            servers.wait_until_healthy(
                ready, flavor, seconds, job.log, there.stop, lines="0", key=there.secret
            )
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
    faults += _image_faults(image, target)
    faults += _file_faults(files, target)
    require(run.name, faults)
    if not start:
        job.log(f"{image.name} {'and its models are' if files.files.places else 'is'} here")
        return Running(ready, flavor)
    key = write_key(job)
    return _started(job, Running(described(), flavor), seconds, replaces, key)


def _started(
    job: Launch, run: Running, seconds: float, replaces: Found | None, key: str
) -> Running:
    job.log(f"starting {run.service.image}")
    labels = servers.labels_of(job)
    about = f"show {job.entry.name}" if job.entry else f"recipe explain {job.run.recipe.name}"
    hint = f"`builder {about}` has its known problems"
    with servers.set_aside(replaces):
        took = servers.start_service(
            run.service, run.flavor, seconds, job.log, hint, labels=labels, key=key
        )
    return replace(run, seconds=took)


# Servers that are older than the recipes and presets of this checkout.


@dataclass(frozen=True, slots=True)
class Outdated:
    """A server, and how the same request would start it now."""

    server: Found
    why: str  # empty: it is up to date
    job: Launch | None = None  # None: it cannot be started anew

    def steps(self) -> Iterator[str]:
        """What has to be done to start it anew.  Raises ``WorldError``."""
        if self.why and self.job:
            images = Images(self.job.catalog, self.job.run.recipe, self.job.settings, self.job.log)
            yield from _to_obtain(self.job, images, _image(images, old=False))
            files = located(self.job.run, self.job.models_dir, self.job.wanted.given)
            yield from (each.task for each in files.missing)
            then = "it is stopped, and stays so" if self.server.stopped else "start it anew"
            yield f"{self.server.title}: {self.why}: {then}"


def compared(catalog: Catalog, settings: Settings, log: Log, server: Found) -> Outdated:
    """Whether a server is older than its recipe and its preset here.

    For an image of a channel the registry is asked.
    """
    wanted = server.request
    if wanted is None:
        return Outdated(server, "not known: an older version of builder started it")
    try:
        job = prepared(catalog, wanted, settings, log)
        images = Images(catalog, job.run.recipe, settings, log)
        if images.channel:
            newest = _image(images, old=False).key
            old = newest != server.key if newest else server.recipe_key not in images.keys
        else:
            old = server.recipe_key not in images.keys
        if old:
            return Outdated(server, "its image is older than its recipe", job)
        if servers.settings_of(job) != server.labels.get(servers.LABEL_SETTINGS):
            return Outdated(server, "its preset has changed", job)
    except BuilderError as error:
        return Outdated(server, f"{error.what}, so it cannot be started anew")
    return Outdated(server, "", job)


def _devices(job: Launch, card: str) -> tuple[tuple[int, ...], list[BuilderError]]:
    try:
        here = cards.this_machine(job.catalog.root)
    except WorldError as error:
        return (), [no_gpu(error)]
    return cards_of(here, job, card, question_of(job))


def _flavor_of(run: Run) -> ApiFlavor:
    serve = families.serve_of(run.recipe)
    if serve is None or serve.refuses is not None:
        what = f"{run.recipe.name} does not say how its server starts with a model"
        raise UntriedError(what, hint="name it in the recipe: [serve]; or start it with docker run")
    return flavor_of(serve)


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
    elif not image.local:
        least, most = sizes.shown(image.least), sizes.shown(image.size)
        yield f"pull {image.name}: {most if least == most else f'{least}, up to {most}'}"


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


def running_already(
    service: Service, there: Found, port: int | None, image: RunImage, *, key_changed: bool = False
) -> Service:
    """The service of a container that runs, at its own port; ``port`` is the requested one."""
    if not there.running:
        why = f"it is {there.status}"
    elif key_changed:
        why = f"it has another API key than {service.key_file}"
    elif there.run != servers.identity(service):
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
        there.stop,
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
