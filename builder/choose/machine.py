"""The cards of a machine, and its driver: as a user names them, or as nvidia-smi lists them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import BuilderError, UntriedError, WorldError
from builder.kernels.selection import Capability
from builder.simulator import cards
from builder.simulator.cards import Card
from builder.tools.docker import gpus

SAME = 0.06  # share by which nvidia-smi's memory of a card may exceed what CUDA can allocate
USABLE = 0.94  # least share of its nominal memory that CUDA can allocate on a card of cards/
DRIVER = re.compile(r"\d{3}(\.\d+){0,2}")


@dataclass(frozen=True, slots=True)
class HostCard:
    """A card of a machine."""

    name: str
    capability: Capability
    memory: int
    """Bytes."""
    context: int
    """Bytes of a process's CUDA context; 0: not known."""
    bandwidth: int = 0
    """Bytes a second of its memory; 0: not known."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The cards of a machine; ``driver`` is empty where it is not known."""

    cards: tuple[HostCard, ...]
    driver: str = ""


def named(root: Path, names: Sequence[str], driver: str = "") -> Machine:
    """A machine with these cards of ``cards/``, each as often as it is named.

    Raises ``RecipeError`` for an unknown name.
    """
    return Machine(tuple(host_card(cards.load(root, name)) for name in names), driver)


def described(memory: int, capability: Capability, driver: str = "") -> Machine:
    """A machine with a card that has no file; ``memory``: its nominal memory in bytes."""
    card = HostCard("a card without a file", capability, int(memory * USABLE), 0)
    return Machine((card,), driver)


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
    try:
        return Machine(tuple(_known(gpu, known) for gpu in found), found[0].driver)
    except ValueError as error:
        raise UntriedError("nvidia-smi knows no compute capability", str(error)) from error


def _known(gpu: gpus.Gpu, known: Sequence[Card]) -> HostCard:
    for card in known:
        if is_listed_as(card, gpu.name, gpu.memory):
            return host_card(card)
    return HostCard(gpu.name, Capability.parse(gpu.capability), gpu.memory << 20, 0)


def is_listed_as(card: Card | HostCard, name: str, memory: int) -> bool:
    """Whether nvidia-smi lists the card so; ``memory`` is in MiB.  Two kinds may share a name."""
    return card.name == name and card.memory <= memory << 20 <= card.memory * (1 + SAME)


def host_card(card: Card) -> HostCard:
    """A card of ``cards/`` as the card of a machine."""
    capability = Capability.parse(card.capability)
    return HostCard(card.name, capability, card.memory, card.context, card.bandwidth)
