"""What the record of an image keeps of its kernels: totals, and the kernels that spill."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simulator.selection import Capability

if TYPE_CHECKING:
    from simulator.ledger import Library


@dataclass(frozen=True, slots=True)
class SpillingKernel:
    """A kernel that spills registers to local memory."""

    name: str
    """Demangled, without parameters."""
    registers: int
    local: int
    """Bytes of local memory of a thread."""
    spills: int
    """Bytes of its spill stores and loads."""


@dataclass(frozen=True, slots=True)
class LibrarySummary:
    """The kernels of a library for one card."""

    library: str
    """Without its directory and version."""
    codes: tuple[str, ...]
    """What the card takes: ``sm_120a``, ...; ``compute_...``: PTX; ``none``."""
    kernels: int
    size: int
    """Bytes of SASS."""
    spills: int
    """Bytes of the spill stores and loads of all kernels."""
    spilling: int
    """Number of kernels that spill."""
    worst: tuple[SpillingKernel, ...]
    """The kernels that spill, the worst first."""


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """The kernels of an image for one card."""

    card: str
    """Compute capability: ``12.0``."""
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


def summary(libraries: Iterable[Library], card: Capability) -> KernelSummary:
    """The summary of a ledger."""
    return KernelSummary(str(card), tuple(_summary_of(library) for library in libraries))


def _summary_of(library: Library) -> LibrarySummary:
    from simulator.demangle import demangled, short

    found = [
        SpillingKernel(short(demangled(each.name)), each.registers, each.local, each.spills)
        for each in library.kernels
        if each.spills
    ]
    return LibrarySummary(
        library.name,
        tuple(sorted(library.codes)),
        len(library.kernels),
        sum(kernel.size for kernel in library.kernels),
        sum(each.spills for each in found),
        len(found),
        tuple(sorted(found, key=lambda each: (-each.spills, each.name))),
    )


def worse(before: KernelSummary, after: KernelSummary) -> list[str]:
    """A sentence for each library whose kernels spill more than before; empty: none does.

    Summaries for different cards are not compared.
    """
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
