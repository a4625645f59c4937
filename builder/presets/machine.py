"""The cards of a machine, and its driver: as a user names them, or as nvidia-smi lists them."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import BuilderError, UntriedError, WorldError
from builder.core.farm import installed
from builder.core.platforms import Platform, platform_of
from builder.docker import gpus
from builder.presets import cards
from builder.presets.cards import Card
from simulator.selection import Capability

SAME = 0.06  # share by which nvidia-smi's memory of a card may exceed what CUDA can allocate
USABLE = 0.94  # least share of its nominal memory that CUDA can allocate on a card of cards/
PC: Platform = "linux/amd64"
DRIVER = re.compile(r"\d{3}(\.\d+){0,2}")


@dataclass(frozen=True, slots=True)
class HostCard:
    """A card of a machine."""

    name: str
    capability: Capability
    """0.0: not known."""
    memory: int
    """Bytes; 0: not known."""
    context: int
    """Bytes of a process's CUDA context; 0: not known."""
    bandwidth: int = 0
    """Bytes a second of its memory; 0: not known."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The cards of a machine."""

    cards: tuple[HostCard, ...]
    driver: str = ""
    """Empty: not known."""
    platform: Platform | None = None
    """The platform of its images; None: not known."""
    remarks: tuple[str, ...] = ()
    """What nvidia-smi does not know of it."""


def named(root: Path, names: Sequence[str], driver: str = "") -> Machine:
    """A machine with these cards of ``cards/``, each as often as it is named.

    Raises ``RecipeError`` for an unknown name.
    """
    found = [cards.load(root, name) for name in names]
    return Machine(tuple(map(host_card, found)), driver, _platform(found) or PC)


def described(memory: int, capability: Capability, driver: str = "") -> Machine:
    """A machine with a card that has no file; ``memory``: its nominal memory in bytes.

    Its platform is as of the cards with a file and the same compute capability.
    """
    card = HostCard("a card without a file", capability, int(memory * USABLE), 0)
    known = cards.every(installed()).values()
    alike = [each for each in known if each.capability == str(capability)]
    only = _platform(alike) if all(each.platform for each in alike) else None
    return Machine((card,), driver, only or PC)


def present(root: Path) -> Machine:
    """This machine, by its own nvidia-smi.  Raises ``WorldError`` where it lists no card."""
    hint = f"name a card: `builder choose --card {'|'.join(cards.names(root))}`"
    try:
        return machine_of(root, gpus.on_host())
    except BuilderError as error:
        raise WorldError(error.what, error.why, hint) from error


def machine_of(root: Path, table: str) -> Machine:
    """The machine that the output of nvidia-smi describes (``gpus.COMMAND``).

    A card that is in ``cards/`` has the memory that CUDA can allocate, which is less.  Raises
    ``UntriedError`` for another text, ``WorldError`` for an empty one, ``RecipeError`` where a file
    of ``cards/`` is invalid.
    """
    known = [*cards.every(root).values()]
    found = gpus.read(table)
    if not found:
        raise WorldError("nvidia-smi lists no GPU")
    remarks: list[str] = []
    listed = tuple(_known(gpu, known, remarks) for gpu in found)
    if not any(card.capability.major for card in listed):
        raise UntriedError("nvidia-smi knows no compute capability", "; ".join(remarks))
    drivers = sorted({gpu.driver for gpu in found if gpu.driver}, key=gpus.version_numbers)
    if len(drivers) > 1:
        remarks.append(f"nvidia-smi names the drivers {' and '.join(drivers)}: the oldest counts")
    elif not drivers:
        remarks.append("nvidia-smi does not know the driver's version: drivers are not compared")
    names = {gpu.name for gpu in found}
    own = _platform([card for card in known if card.name in names])
    where = own or platform_of(platform.machine())
    return Machine(listed, next(iter(drivers), ""), where, tuple(remarks))


def _platform(found: Sequence[Card]) -> Platform | None:
    """The platform of the only machines that have one of these cards; None: any has them."""
    return next((card.platform for card in found if card.platform), None)


def _known(gpu: gpus.Gpu, known: Sequence[Card], remarks: list[str]) -> HostCard:
    """The card of a GPU, by its file where it has one.

    Two kinds may share a name: where its memory is not known, it is the smaller one.
    """
    named = [card for card in known if card.name == gpu.name]
    listed = [card for card in named if is_listed_as(card, gpu.name, gpu.memory)]
    if not gpu.memory and named:
        listed = [min(named, key=lambda card: card.memory)]
        remarks.append(
            f"nvidia-smi does not know the memory of the {gpu.name}: it is taken from cards/"
        )
    if listed:
        return host_card(listed[0])
    if not gpu.memory:
        remarks.append(f"nvidia-smi does not know the memory of the {gpu.name}")
    capability = gpu.capability or next((card.capability for card in named), "")
    if not capability:
        remarks.append(f"nvidia-smi does not know the compute capability of the {gpu.name}")
    parsed = Capability.parse(capability or "0.0")
    return HostCard(gpu.name, parsed, gpu.memory << 20, 0)


def is_listed_as(card: Card | HostCard, name: str, memory: int) -> bool:
    """Whether nvidia-smi lists the card so; ``memory`` is in MiB.  Two kinds may share a name."""
    return card.name == name and card.memory <= memory << 20 <= card.memory * (1 + SAME)


def host_card(card: Card) -> HostCard:
    """A card of ``cards/`` as the card of a machine."""
    capability = Capability.parse(card.capability)
    return HostCard(card.name, capability, card.memory, card.context, card.bandwidth)
