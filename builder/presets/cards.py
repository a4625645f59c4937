"""Cards of ``cards/NAME.toml``, each figure with its source, and the cards of a machine."""

from __future__ import annotations

import platform
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from builder.core.errors import BuilderError, UntriedError, UsageError, WorldError, suggestion
from builder.core.farm import folder, installed
from builder.core.platforms import Platform, platform_of
from builder.docker import gpus
from builder.recipes.catalog import read_model
from builder.recipes.fields import CAPABILITY, Model, Text
from simulator.selection import Capability

PREFIXES = ("nvidia-", "geforce-", "rtx-")
COMMON = ("-gpu", "-edition", "-blackwell")  # parts of NVIDIA's names that files leave out


Count = Annotated[int, Field(gt=0)]


class Source(Model):
    """Where figures of a card were published."""

    title: Text
    url: Text
    figures: tuple[str, ...] = Field(strict=False)


class Card(Model):
    """A card; one source names each figure, or the figure is listed as unverified."""

    name: Text  # as ``cudaDeviceProp.name`` has it
    capability: Annotated[str, StringConstraints(pattern=CAPABILITY)]
    platform: Platform | None = None
    """Platform of the only machines that have it: linux/arm64; default: PCs have it."""
    multiprocessors: Count
    memory: Count
    """Bytes: the total that ``cudaMemGetInfo`` returns, which is less than the nominal memory."""
    context: Count  # bytes that a process's CUDA context itself takes
    shared_per_block: Count  # bytes of shared memory without ``cudaFuncSetAttribute``
    shared_per_block_optin: Count  # bytes of shared memory with it
    shared_per_multiprocessor: Count
    registers_per_block: Count
    registers_per_multiprocessor: Count
    threads_per_block: Count
    threads_per_multiprocessor: Count
    l2: Count  # bytes
    bus_width: Count  # bits
    memory_clock_khz: Count
    clock_khz: Count
    peer: bool  # whether cards of this kind reach each other's memory
    source: tuple[Source, ...] = Field(strict=False)
    unverified: dict[str, Text] = Field(default_factory=dict)
    """Figures without a log or a specification, each with a remark."""

    @model_validator(mode="after")
    def _each_figure_has_a_source(self) -> Card:
        named = [*self.unverified, *(name for each in self.source for name in each.figures)]
        faults = {
            "named by more than one source": sorted({n for n in named if named.count(n) > 1}),
            "without a source, and not in [unverified]": [n for n in FIGURES if n not in named],
            "a source of no figure": [n for n in named if n not in FIGURES],
        }
        for fault, figures in faults.items():
            if figures:
                raise ValueError(f"{', '.join(figures)}: {fault}")
        if self.context >= self.memory:
            raise ValueError("the context takes more than the card has")
        return self

    @property
    def bandwidth(self) -> int:
        """Bytes a second of its memory, which has two transfers in a period of its clock."""
        return self.bus_width // 8 * self.memory_clock_khz * 1000 * 2


FIGURES = tuple(
    name for name in Card.model_fields if name not in {"platform", "source", "unverified"}
)


def names(root: Path) -> tuple[str, ...]:
    """The names of all cards."""
    return tuple(sorted(file.stem for file in folder(root, "cards").glob("*.toml")))


def load(root: Path, name: str) -> Card:
    """The card of that name; ``RTX 5090 Laptop`` is 5090-laptop, too.

    Raises ``UsageError`` where there is none, with the name that is meant, ``RecipeError`` where
    its file is invalid.
    """
    existing = names(root)
    wanted = plain_name(name)
    if wanted not in existing:
        short = wanted.replace("-", "")
        longer = [each for each in existing if short and each.replace("-", "").startswith(short)]
        near = (
            f"; did you mean {' or '.join(longer)}?" if longer else suggestion(wanted, [*existing])
        )
        raise UsageError(f"no card is named {name}{near}", f"the cards: {', '.join(existing)}")
    file = folder(root, "cards") / f"{wanted}.toml"
    return read_model(file, Card, f"the card {wanted} is invalid")


def every(root: Path) -> dict[str, Card]:
    """All cards, by the names of their files.  Raises ``RecipeError`` where one is invalid."""
    return known(root, names(root))


def known(root: Path, wanted: Collection[str]) -> dict[str, Card]:
    """The wanted cards that have a file, by its name; raises like ``every``."""
    return {name: load(root, name) for name in names(root) if name in wanted}


def plain_name(name: str) -> str:
    """The name of a card as files have it: 5090-laptop."""
    plain = "-".join(name.lower().replace("_", " ").split())
    for prefix in PREFIXES:
        plain = plain.removeprefix(prefix)
    for part in COMMON:
        plain = plain.replace(part, "")
    return plain


@dataclass(frozen=True, slots=True)
class Compute:
    """Kernels are computed, and memory has contents."""

    ptx: str = ""
    """The directory, in the container, with the PTX of machine code: ``DIGEST.ptx`` by its sha256.
    PTX that is beside the machine code in a program goes first."""
    races: bool = False  # whether races of warps and of blocks are found; that is slow
    outputs: bool = False  # whether the report has a checksum of the values that each launch stored


def text(
    cards: Sequence[Card],
    *,
    vocabulary: int = 0,
    tokens: Sequence[int] = (),
    compute: Compute | None = None,
    samples: bool = False,
) -> str:
    """The file ``cards`` of the simulator's configuration (``simulator/card``).

    Without ``compute`` kernels are counted and not run.  Then ``vocabulary`` is the number of the
    model's tokens, 0: unknown; ``tokens`` win in turns.  With ``samples`` a launch forgets all that
    was kept: what is read back is a kernel's result.
    """
    lines = [f"vocabulary {vocabulary}"]
    if tokens:
        lines.append("tokens " + " ".join(str(token) for token in tokens))
    if samples:
        lines.append("launches_write 1")
    if compute is not None:
        lines += ["mode compute", f"races {int(compute.races)}", f"outputs {int(compute.outputs)}"]
        lines += [f"ptx {compute.ptx}"] if compute.ptx else []
    for number, card in enumerate(cards):
        figures = ((name, getattr(card, name)) for name in FIGURES)
        lines.append(f"card {number}")
        lines += [
            f"{name} {int(value) if isinstance(value, bool) else value}" for name, value in figures
        ]
    return "\n".join(lines) + "\n"


# The cards of a machine, and its driver: as a user names them, or as nvidia-smi lists them.

SAME = 0.06  # share by which nvidia-smi's memory of a card may exceed what CUDA can allocate
USABLE = 0.94  # least share of its nominal memory that CUDA can allocate on a card of cards/
PC: Platform = "linux/amd64"
DRIVER = re.compile(r"\d{3}(\.\d+){0,2}")


@dataclass(frozen=True, slots=True)
class HostCard:
    """A card of a machine."""

    name: str
    capability: Capability  # 0.0: not known
    memory: int  # bytes; 0: not known
    context: int  # bytes of a process's CUDA context; 0: not known
    bandwidth: int = 0  # bytes a second of its memory; 0: not known


@dataclass(frozen=True, slots=True)
class Machine:
    """The cards of a machine."""

    cards: tuple[HostCard, ...]
    driver: str = ""  # empty: not known
    platform: Platform | None = None  # the platform of its images; None: not known
    remarks: tuple[str, ...] = ()  # what nvidia-smi does not know of it


def machine_with(root: Path, wanted: Sequence[str], driver: str = "") -> Machine:
    """A machine with these cards of ``cards/``, each as often as it is named; raises like
    ``load``."""
    found = [load(root, name) for name in wanted]
    return Machine(tuple(map(host_card, found)), driver, _platform(found) or PC)


def unnamed_card(memory: int, capability: Capability, driver: str = "") -> Machine:
    """A machine with a card that has no file; ``memory``: its nominal memory in bytes.

    Its platform is as of the cards with a file and the same compute capability.
    """
    card = HostCard("a card without a file", capability, int(memory * USABLE), 0)
    alike = [each for each in every(installed()).values() if each.capability == str(capability)]
    only = _platform(alike) if all(each.platform for each in alike) else None
    return Machine((card,), driver, only or PC)


def this_machine(root: Path) -> Machine:
    """This machine, by its own nvidia-smi.  Raises ``WorldError`` where it lists no card."""
    hint = f"name a card: `builder choose --card {'|'.join(names(root))}`"
    try:
        return machine_of(root, gpus.on_host())
    except BuilderError as error:
        raise WorldError(error.what, error.why, hint) from error


def machine_of(root: Path, table: str) -> Machine:
    """The machine that the output of nvidia-smi describes (``gpus.COMMAND``).

    A card has the memory that CUDA can allocate, which is less: by its file in ``cards/``, else by
    the largest difference of all that have one.  Raises
    ``UntriedError`` for another text, ``WorldError`` for an empty one, ``RecipeError`` where a file
    of ``cards/`` is invalid.
    """
    with_file = [*every(root).values()]
    found = gpus.read(table)
    if not found:
        raise WorldError("nvidia-smi lists no GPU")
    remarks: list[str] = []
    listed = tuple(_known(gpu, with_file, remarks) for gpu in found)
    if not any(card.capability.major for card in listed):
        raise UntriedError("nvidia-smi knows no compute capability", "; ".join(remarks))
    drivers = sorted({gpu.driver for gpu in found if gpu.driver}, key=gpus.version_numbers)
    if len(drivers) > 1:
        remarks.append(f"nvidia-smi names the drivers {' and '.join(drivers)}: the oldest counts")
    elif not drivers:
        remarks.append("nvidia-smi does not know the driver's version: drivers are not compared")
    listed_names = {gpu.name for gpu in found}
    own = _platform([card for card in with_file if card.name in listed_names])
    where = own or platform_of(platform.machine())
    return Machine(listed, next(iter(drivers), ""), where, tuple(remarks))


def _platform(found: Sequence[Card]) -> Platform | None:
    return next((card.platform for card in found if card.platform), None)


def _known(gpu: gpus.Gpu, with_file: Sequence[Card], remarks: list[str]) -> HostCard:
    """The card of a GPU, by its file where it has one.

    Two kinds may share a name: where its memory is not known, it is the smaller one.
    """
    what = f"of the {gpu.name}"
    alike = [card for card in with_file if card.name == gpu.name]
    listed = [card for card in alike if is_listed_as(card, gpu.name, gpu.memory)]
    if not gpu.memory:
        taken = ": it is taken from cards/" if alike else ""
        remarks.append(f"nvidia-smi does not know the memory {what}{taken}")
        listed = [min(alike, key=lambda card: card.memory)] if alike else []
    if listed:
        return host_card(listed[0])
    capability = gpu.capability or next((card.capability for card in alike), "")
    if not capability:
        remarks.append(f"nvidia-smi does not know the compute capability {what}")
    # A GB10 with another memory than its file's has the machine's, all of it.
    usable = gpu.memory << 20 if alike else ceil((gpu.memory << 20) / (1 + SAME))
    return HostCard(gpu.name, Capability.parse(capability or "0.0"), usable, 0)


def is_listed_as(card: Card | HostCard, name: str, memory: int) -> bool:
    """Whether nvidia-smi lists the card so; ``memory`` is in MiB.  Two kinds may share a name."""
    return card.name == name and card.memory <= memory << 20 <= card.memory * (1 + SAME)


def host_card(card: Card) -> HostCard:
    """A card of ``cards/`` as the card of a machine."""
    capability = Capability.parse(card.capability)
    return HostCard(card.name, capability, card.memory, card.context, card.bandwidth)
