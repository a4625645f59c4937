"""What a card does with the device code of a library: it runs it, has it compiled, or cannot."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.core import sizes
from simulator.fatbin import Modules
from simulator.selection import Capability, preferred
from simulator.work import demangled, short

if TYPE_CHECKING:
    from simulator.ledger import Library


@dataclass(frozen=True, slots=True)
class CodePaths:
    """The device code of a library by its path in the image; sizes are bytes in the file."""

    path: str
    native: int = 0  # machine code that the card runs
    compiled: int = 0  # PTX without such machine code: the driver compiles it when used
    dead: int = 0  # code that the card never runs: for other cards, or PTX beside machine code
    card: str = ""  # its compute capability, ``12.0``; empty: the recipe's first one
    removed: int = 0  # code that the build removed from a wheel

    @property
    def pathless(self) -> bool:
        """Whether the card runs none of it."""
        return not self.native and not self.compiled

    @property
    def whole(self) -> int:
        """All of it."""
        return self.native + self.compiled + self.dead


@dataclass(frozen=True, slots=True)
class CodeSums:
    """The device code of all libraries of an image for a card; sizes are as in ``CodePaths``."""

    card: str
    native: int
    compiled: int
    dead: int
    removed: int
    late: tuple[str, ...] = ()  # file names with code that the driver compiles
    pathless: tuple[str, ...] = ()  # file names of which the card runs nothing

    @property
    def text(self) -> str:
        """The sums in one line."""
        text = f"{sizes.shown(self.native)} runs as it is"
        if self.late:
            size, names = sizes.shown(self.compiled), ", ".join(self.late)
            text += f", the driver compiles {size} at the first use ({names})"
        text += f", {sizes.shown(self.dead)} never runs"
        text += f" (all of {', '.join(self.pathless)})" if self.pathless else ""
        return f"{text}, {self.shown_removed} was removed" if self.shown_removed else text

    @property
    def shown_removed(self) -> str:
        """The size of the removed code; empty where there is so little that it aligns the rest."""
        return sizes.shown(self.removed) if self.removed >= LEAST else ""


LEAST = 50_000  # bytes of removed code that are shown as 0.1 MB: fewer align fat binaries
HEADER = ("device code", "runs as it is", "compiled by the driver", "never runs")


def rows(found: Sequence[CodePaths]) -> list[tuple[str, ...]]:
    """The rows below ``HEADER``; a path names its card if there are more; 0 bytes are empty."""
    several = len({each.card for each in found}) > 1
    cards = (f" ({each.card})" if several else "" for each in found)
    return [(each.path + card, *shown_parts(each)) for each, card in zip(found, cards, strict=True)]


def shown_parts(found: CodePaths | CodeSums) -> tuple[str, ...]:
    """The sizes below the last columns of ``HEADER``; a size of nothing is empty."""
    parts = (found.native, found.compiled, found.dead)
    return tuple(sizes.shown(part) if part else "" for part in parts)


def text_of(found: Sequence[CodePaths]) -> str:
    """The sums of an image's libraries by card, in one line; empty: none has device code."""
    return text_of_sums(sums(found))


def text_of_sums(found: Sequence[CodeSums]) -> str:
    """The sums by card, in one line."""
    several = len(found) > 1
    return "; ".join(f"{each.card}: {each.text}" if several else each.text for each in found)


def sums(found: Sequence[CodePaths]) -> tuple[CodeSums, ...]:
    """The sums of an image's libraries, by card."""
    by_card: dict[str, list[CodePaths]] = defaultdict(list)
    for each in found:
        by_card[each.card].append(each)
    return tuple(
        CodeSums(
            card,
            native=sum(each.native for each in own),
            compiled=sum(each.compiled for each in own),
            dead=sum(each.dead for each in own),
            removed=sum(each.removed for each in own),
            late=tuple(posixpath.basename(each.path) for each in own if each.compiled),
            pathless=tuple(posixpath.basename(each.path) for each in own if each.pathless),
        )
        for card, own in by_card.items()
    )


def code_paths(
    path: str, modules: Sequence[Modules], card: Capability, removed: int = 0
) -> CodePaths:
    """The device code of a library's modules on a card; ``removed`` as in ``CodePaths``."""
    native = compiled = whole = 0
    for each in modules:
        stored = dict(zip(each.codes, each.sizes, strict=True))
        whole += sum(each.sizes)
        taken = preferred(each.codes, card)
        if taken is not None and taken.kind == "elf":
            native += stored[taken]
        elif taken is not None:
            compiled += stored[taken]
    return CodePaths(path, native, compiled, whole - native - compiled, str(card), removed)


# What the record of an image keeps of its kernels: totals, and the kernels that spill.


@dataclass(frozen=True, slots=True)
class SpillingKernel:
    """A kernel that spills registers: its demangled name without parameters, the bytes of local
    memory of a thread, and the bytes of its spill stores and loads."""

    name: str
    registers: int
    local: int
    spills: int


@dataclass(frozen=True, slots=True)
class LibrarySummary:
    """The kernels of a library for one card."""

    library: str  # without its directory and version
    codes: tuple[str, ...]  # what the card takes: ``sm_120a``, ...; ``compute_...``: PTX; ``none``
    kernels: int
    size: int  # bytes of SASS
    spills: int  # bytes of the spill stores and loads of all kernels
    spilling: int  # number of kernels that spill
    worst: tuple[SpillingKernel, ...]  # the kernels that spill, the worst first


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """The kernels of an image for one card, by its compute capability: ``12.0``."""

    card: str
    libraries: tuple[LibrarySummary, ...]

    def shortened(self, most: int) -> KernelSummary:
        """The libraries that spill, with at most so many spilling kernels of each, the worst."""
        spilling = (each for each in self.libraries if each.spills)
        libraries = (replace(each, worst=each.worst[:most]) for each in spilling)
        return replace(self, libraries=tuple(libraries))

    @property
    def spilling(self) -> int:
        """Number of kernels that spill."""
        return sum(each.spilling for each in self.libraries)

    @property
    def spills(self) -> int:
        """Bytes of the spill stores and loads of all kernels."""
        return sum(each.spills for each in self.libraries)


def kernel_summary(libraries: Iterable[Library], card: Capability) -> KernelSummary:
    """The summary of a ledger."""
    made = []
    for library in libraries:
        found = [
            SpillingKernel(short(demangled(each.name)), each.registers, each.local, each.spills)
            for each in library.kernels
            if each.spills
        ]
        made.append(
            LibrarySummary(
                library.name,
                tuple(sorted(library.codes)),
                len(library.kernels),
                sum(kernel.size for kernel in library.kernels),
                sum(each.spills for each in found),
                len(found),
                tuple(sorted(found, key=lambda each: (-each.spills, each.name))),
            )
        )
    return KernelSummary(str(card), tuple(made))


def worse(before: KernelSummary, after: KernelSummary) -> list[str]:
    """A sentence for each library that spills more than before; only for the same card."""
    if before.card != after.card:
        return []
    known = {each.library: each for each in before.libraries}
    return [
        _sentence(known.get(each.library), each)
        for each in after.libraries
        if each.spills > (known[each.library].spills if each.library in known else 0)
    ]


def _sentence(before: LibrarySummary | None, after: LibrarySummary) -> str:
    if before is None:
        worst = "".join(f"; {each.name}: {each.spills:,} bytes" for each in after.worst[:1])
        return f"{after.library}: {_spilling(after)}, before none{worst}"
    old = {each.name: each.spills for each in before.worst}
    most = max(after.worst, key=lambda each: each.spills - old.get(each.name, 0))
    was = f"{old[most.name]:,} -> " if most.name in old else ""
    return (
        f"{after.library}: {_spilling(after)}, before {_spilling(before)}; "
        f"{most.name}: {was}{most.spills:,} bytes"
    )


def _spilling(of: LibrarySummary) -> str:
    return f"{of.spilling:,} of {of.kernels:,} kernels spill {of.spills:,} bytes"
