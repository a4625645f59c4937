"""All faults that prevent a run on this machine, the GPU's first."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from builder.core import sizes
from builder.core.errors import BuilderError, WorldError
from builder.docker import engine as docker
from builder.docker import gpus
from builder.docker.containers import TOOLKIT
from builder.presets import cards, choose, machine, needs
from builder.presets.choose import Question
from builder.presets.described import Launch
from builder.presets.files import Located
from builder.presets.images import RunImage
from builder.presets.known import known
from builder.presets.machine import Machine
from builder.presets.service import HOST, Run, Service

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


def require(name: str, faults: Sequence[BuilderError]) -> None:
    """Raise ``WorldError`` with all faults, each with its next step, if there are any."""
    if faults:
        lines = [": ".join(filter(None, (each.what, each.why))) for each in faults]
        lines = [
            f"{text}\n  -> {each.hint}" if each.hint else text
            for text, each in zip(lines, faults, strict=True)
        ]
        raise WorldError(f"{name} cannot run here", "\n".join(lines))


def question_of(job: Launch) -> Question:
    """What is known of a run, for a machine without cards."""
    entries = [job.entry] if job.entry else []
    facts = known(job.catalog, entries, job.settings.state_dir, [job.run.recipe.name])
    return replace(
        facts.question,
        context=job.run.context or 0,
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
        wanted = machine.host_card(cards.load(job.catalog.root, card))
        numbers = tuple(number for number in numbers if here.cards[number] == wanted)
    if not numbers:
        have = ", ".join(each.name for each in here.cards)
        return (), [WorldError(f"this machine has no card {card}", hint=f"it has: {have}")]
    faults: list[BuilderError] = []
    oldest = needs.driver_on(run.recipe, job.catalog, here.cards)
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
    return [*needs.no_image(run.recipe, here.cards[:1], here.platform, "the")]


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
            yield WorldError(
                f"port {service.published} of {HOST} cannot be used",
                error.strerror or "",
                "choose another one: --port N",
            )
