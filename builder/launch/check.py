"""All faults that prevent a run on this machine, the GPU's first."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

from builder.choose import choice, machine, needs
from builder.choose.choice import Trials
from builder.choose.machine import HostCard, Machine
from builder.errors import BuilderError, WorldError
from builder.families.device_code import no_code, runs_on
from builder.launch.files import Located
from builder.launch.images import RunImage
from builder.presets import command
from builder.presets.catalog import PresetEntry
from builder.presets.service import HOST, Run, Service
from builder.recipes.catalog import Catalog
from builder.simulator import cards
from builder.tools import sizes
from builder.tools.docker import engine as docker
from builder.tools.docker import gpus
from builder.tools.docker.containers import TOOLKIT

KERNEL_MODULE = Path("/proc/driver/nvidia/version")
"""Exists where the kernel has NVIDIA's driver (its README, "The /proc interface")."""
ELSEWHERE = (
    "run it on the machine with the card (`builder export` writes files for it), or on the CPU, "
    "where the engine can: --cpu"
)
OTHERS = "`builder choose` shows the presets that run on this machine"
BUILD = "add the card's architecture to `arch` in [cuda] of the recipe, and build it"
AUTO = "auto"
NAMES = {"model": "model", "draft": "draft model", "mmproj": "projector"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the next step."""

    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """The recipes of presets, and their recorded trials."""

    catalog: Catalog
    trials: Trials = field(default=lambda _: None)
    other_model: bool = False
    """The user names another model than the preset's."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The cards of this machine for a run, or why there are none."""

    devices: tuple[int, ...] = ()
    faults: tuple[Fault, ...] = ()


def require(name: str, faults: Sequence[Fault]) -> None:
    """Raise ``WorldError`` with all faults, each with its next step, if there are any."""
    if faults:
        lines = [f"{each.what}\n  -> {each.hint}" if each.hint else each.what for each in faults]
        raise WorldError(f"{name} cannot run here", "\n".join(lines))


def choose_cards(run: Run, entry: PresetEntry | None, card: str, asked: Asked) -> Chosen:
    """The first cards of this machine that suffice, or the cards of the name ``card``."""
    try:
        here = machine.present(asked.catalog.root)
    except WorldError as error:
        return Chosen(faults=(_no_gpu(error),))
    return chosen_of(here, run, entry, card, asked)


def chosen_of(
    here: Machine, run: Run, entry: PresetEntry | None, card: str, asked: Asked
) -> Chosen:
    """The first cards of a machine that suffice, or why none does."""
    numbers = _named(here, card, asked.catalog)
    if not numbers:
        have = ", ".join(each.name for each in here.cards)
        return Chosen(faults=(Fault(f"this machine has no card {card}", f"it has: {have}"),))
    old = tuple(_old_driver(run, here, asked.catalog))
    count = min(run.preset.cards if run.preset else 1, len(numbers))
    faults: list[Fault] = []
    for group in combinations(numbers, count):
        found = tuple(here.cards[number] for number in group)
        why = list(_unfit(run, entry, Machine(found, platform=here.platform), asked))
        if not why:
            # Without numbers, Docker takes all cards of the machine.
            return Chosen(group if len(here.cards) > count and not old else (), old)
        names = " and ".join(card.name for card in found)
        faults += [Fault(f"{names}: {each}", OTHERS if entry else BUILD) for each in why]
    return Chosen(faults=(*old, *dict.fromkeys(faults)))


def _old_driver(run: Run, here: Machine, catalog: Catalog) -> Iterator[Fault]:
    oldest = needs.driver_on(run.recipe, catalog, here.cards)
    if gpus.is_older(here.driver, oldest):
        yield Fault(
            f"the driver {here.driver} is too old: the image needs {oldest} or newer",
            f"install NVIDIA's driver {oldest} or newer",
        )


def _no_gpu(error: BuilderError) -> Fault:
    """Without nvidia-smi nothing is known of the cards, even where the kernel has the driver."""
    if KERNEL_MODULE.exists():
        return Fault(
            f"{error.what}, although NVIDIA's driver is loaded: {error.why}",
            "install nvidia-smi, which belongs to the driver (Debian: nvidia-smi)",
        )
    hint = "check what nvidia-smi prints" if shutil.which(gpus.COMMAND[0]) else ELSEWHERE
    return Fault(f"{error.what}: {error.why}", hint)


def _named(here: Machine, card: str, catalog: Catalog) -> tuple[int, ...]:
    """The numbers of the cards with a name of ``cards/``, or all of them."""
    everything = range(len(here.cards))
    if card == AUTO:
        return tuple(everything)
    wanted = machine.host_card(cards.load(catalog.root, card))
    return tuple(number for number in everything if here.cards[number] == wanted)


def _unfit(run: Run, entry: PresetEntry | None, here: Machine, asked: Asked) -> Iterator[str]:
    if entry is None:
        yield from unfit_for_recipe(run, here)
        return
    known = cards.every(asked.catalog.root)
    question = choice.Question(here, asked.catalog, known, trials=asked.trials)
    yield from choice.faults(entry, of_run(question, run, asked.other_model))


def of_run(question: choice.Question, run: Run, other_model: bool) -> choice.Question:
    """The question with the context and the options of a run."""
    context = context_of(run)
    return replace(question, context=context, options=run.options, other_model=other_model)


def context_of(run: Run) -> int:
    """The context that a run asks for: by an option of the engine, which wins, or by --context;
    0: the preset's."""
    places = command.places_by_setting(run.preset, run.recipe)
    found = run.context or 0
    for first, *rest in command.groups(run.options):
        if places.get(command.setting_of(first, run.recipe)) == "context":
            given = command.tokens(first.partition("=")[2] or "".join(rest[:1]))
            found = found if given is None else given or _trained(run)
    return found


def _trained(run: Run) -> int:
    """llama.cpp takes a context of 0 as all that the model was trained for."""
    return needs.trained(run.preset, ()) if run.preset else 0


def unfit_for_recipe(run: Run, here: Machine) -> Iterator[str]:
    """Why the image of a recipe does not run on the first card of a machine."""
    card: HostCard = here.cards[0]
    if here.platform not in {None, *run.recipe.platform}:
        known = " and ".join(run.recipe.platform)
        yield f"the image is for {known}, the machine of the card is {here.platform}"
    if not runs_on(run.recipe, card.capability, here.platform):
        lacks = no_code(run.recipe, card.capability, platform=here.platform)
        yield f"the image has {lacks}"


def engine_faults(*, cpu: bool) -> Iterator[Fault]:
    """Whether the engine answers, and, where the run is not on the ``cpu``, has GPUs."""
    try:
        if cpu:
            docker.ask_engine()
        elif not (docker.engine().has_nvidia_runtime or docker.engine().has_nvidia_cdi):
            yield Fault("Docker has neither NVIDIA's runtime nor GPUs by CDI", TOOLKIT)
    except WorldError as error:
        yield Fault(": ".join(filter(None, (error.what, error.why))), error.hint)


def image_faults(image: RunImage, target: str) -> Iterator[Fault]:
    """Whether Docker lacks the image that the recipe asks for, and how to get it."""
    if image.what:
        yield Fault(image.what, image.hint)
    elif not image.local:
        pull = f"`builder run {target} --yes`, or docker pull {image.name}"
        yield Fault(f"the image {image.name} is published, and not in Docker", pull)


def file_faults(found: Located, target: str) -> Iterator[Fault]:
    """The models that are not here, with their size and how to get them."""
    for place, error in found.unusable.items():
        what = ": ".join(filter(None, (error.what, error.why)))
        yield Fault(f"the {NAMES[place]}: {what}", error.hint)
    for each in found.missing:
        size = f"; {sizes.shown(each.size)} to download" if each.size else ""
        why = f" ({each.why})" if each.why else ""
        what = f"the {NAMES[each.place]} {each.file.shown} is not here{size}{why}"
        yield Fault(what, each.commands(target))


def port_faults(service: Service) -> Iterator[Fault]:
    """Whether another program has the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, service.published))
        except OSError as error:
            yield Fault(
                f"port {service.published} of {HOST} cannot be used: {error.strerror}",
                "choose another one: --port N",
            )
