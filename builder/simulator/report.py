"""The reports of the simulator's libraries: what the processes of a container did with the cards.

Each process writes one JSON file, anew while something changes (dockerfiles/simulator).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from builder.errors import UntriedError

SETTLE = 0.5  # seconds until a report has what happened before: twice the pause of its thread
Shape = tuple[int, int, int]
"""Threads or blocks along x, y and z."""


class Part(BaseModel):
    """The base class of all parts of a report; sizes are bytes."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class CardUse(Part):
    """The memory of one card."""

    name: str
    memory: int
    context: int
    """The context's own memory, which is part of ``used`` and ``peak``."""
    used: int
    peak: int


class Allocation(Part):
    """The allocations of one place in the code."""

    stack: int
    """Index into ``Report.stacks``."""
    card: int
    function: str
    count: int
    live: int
    """Bytes that are not freed."""
    at_peak: int
    """Bytes that were not freed when the card's use was at its peak."""
    largest: int


class Failed(Part):
    """An allocation for which the card had no room."""

    stack: int
    card: int
    function: str
    requested: int
    free: int


class Launch(Part):
    """The launches of one kernel; the shapes are the largest."""

    kernel: str
    file: str
    code: str
    """What the driver would run: "sm_120a"; "compute_120": PTX, which it would compile."""
    card: int
    count: int
    grid: Shape
    block: Shape
    shared: int
    """Dynamic shared memory."""


class Violation(Part):
    """A launch that the card refuses."""

    kernel: str
    error: str
    why: str
    grid: Annotated[tuple[int, ...], Field(max_length=3)] = ()
    block: Annotated[tuple[int, ...], Field(max_length=3)] = ()
    shared: int = 0
    stack: int
    count: int


class Unsupported(Part):
    """A function that was called and is not implemented."""

    function: str
    count: int
    stack: int


class UnknownCode(Part):
    """Device code that no file of the image has."""

    file: str
    kernels: tuple[str, ...]


class Copies(Part):
    """Copies in one direction; ``kept`` are the bytes that can be read back."""

    count: int = 0
    bytes: int = 0
    kept: int = 0


Placed = TypeVar("Placed", Allocation, Failed, Violation, Unsupported)
"""The parts that a stack belongs to."""


class AllCopies(Part):
    """The copies by direction."""

    to_device: Copies = Copies()
    to_host: Copies = Copies()
    device: Copies = Copies()


class Report(Part):
    """What one process did, or all processes of a container."""

    version: Literal[1]
    began: int = 0
    """When the process first used a card, in nanoseconds of the machine's clock."""
    ended: int = 0
    """When the process ended by itself; 0: it did not, or was killed."""
    processes: int = 1
    """How many processes' peaks are added to the peak of a card: those that ran at one time."""
    command: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    """The CUDA libraries that were loaded, by path."""
    cards: tuple[CardUse, ...] = ()
    stacks: tuple[tuple[str, ...], ...] = ()
    """Frames "FILE+0xOFFSET SYMBOL", innermost first; the symbol may be missing."""
    allocations: tuple[Allocation, ...] = ()
    failed: tuple[Failed, ...] = ()
    launches: tuple[Launch, ...] = ()
    violations: tuple[Violation, ...] = ()
    unsupported: tuple[Unsupported, ...] = ()
    unknown_code: tuple[UnknownCode, ...] = ()
    called: dict[str, int] = {}
    """Functions of CUDA, and how often each was called."""
    implemented: tuple[str, ...] = ()
    copies: AllCopies = AllCopies()

    @property
    def live(self) -> int:
        """Bytes that are allocated and not freed, without the contexts."""
        return sum(each.live for each in self.allocations)

    @property
    def peak(self) -> int:
        """The peak of all cards together, with their contexts; of several processes, an upper
        bound: their peaks need not be at the same moment."""
        return sum(card.peak for card in self.cards)

    @property
    def launched(self) -> int:
        """How many kernels were launched, each launch counted."""
        return sum(each.count for each in self.launches)

    @property
    def kernels(self) -> set[str]:
        """The kernels that were launched."""
        return {each.kernel for each in self.launches}


def read(folder: Path) -> Report | None:
    """All reports of a directory as one; None where no process called a function of CUDA.

    Raises ``UntriedError`` for a file that is no report.
    """
    found = [_parsed(file) for file in sorted(folder.glob("*.json"))]
    used = [report for report in found if report.called]
    return _merged(used) if used else None


def settled(folder: Path) -> Report | None:
    """As ``read``, with all that happened until now: the processes may be writing it."""
    time.sleep(SETTLE)
    return read(folder)


def _parsed(file: Path) -> Report:
    try:
        return Report.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise UntriedError(
            f"{file.name} is not a report of the simulator",
            str(error),
            "try again: a report is cut short where a disk is full",
        ) from error


def _merged(reports: Sequence[Report]) -> Report:
    """Several processes as one.

    The peak of a card is that of the processes which had the most of it together.  What the others
    had at their own peaks is no part of it.
    """
    count = max(len(report.cards) for report in reports)
    peaking = [_peaking(reports, card) for card in range(count)]
    cards = tuple(_card(reports, card, peaking[card]) for card in range(count))
    counted = [_at_peak(report, peaking) for report in reports]
    found = reduce(_added, counted)
    most = max((len(group) for group in peaking), default=1)
    return found.model_copy(update={"cards": cards, "processes": most})


def _peaking(reports: Sequence[Report], card: int) -> list[Report]:
    """Of the processes that use a card, those at one time whose peaks are the most together."""
    users = [report for report in reports if card < len(report.cards) and report.cards[card].peak]
    groups = [
        [other for other in users if other.began <= report.began and _lives_at(other, report.began)]
        for report in users
    ]
    return max(groups, key=lambda group: sum(each.cards[card].peak for each in group), default=[])


def _lives_at(report: Report, moment: int) -> bool:
    return report.ended == 0 or report.ended > moment


def _card(reports: Sequence[Report], card: int, peaking: Sequence[Report]) -> CardUse:
    uses = [report.cards[card] for report in reports if card < len(report.cards)]
    return uses[0].model_copy(
        update={
            "context": len(peaking) * uses[0].context,
            "used": sum(use.used for use in uses),
            "peak": sum(report.cards[card].peak for report in peaking),
        }
    )


def _at_peak(report: Report, peaking: Sequence[Sequence[Report]]) -> Report:
    """The report with ``at_peak`` only where it is part of a card's peak."""
    kept = tuple(
        each
        if any(report is other for other in peaking[each.card])
        else each.model_copy(update={"at_peak": 0})
        for each in report.allocations
    )
    return report.model_copy(update={"allocations": kept})


def _added(one: Report, other: Report) -> Report:
    shift = len(one.stacks)
    return Report(
        version=1,
        command=one.command,
        libraries=tuple(dict.fromkeys(one.libraries + other.libraries)),
        stacks=one.stacks + other.stacks,
        allocations=one.allocations + _shifted(other.allocations, shift),
        failed=one.failed + _shifted(other.failed, shift),
        launches=one.launches + other.launches,
        violations=one.violations + _shifted(other.violations, shift),
        unsupported=one.unsupported + _shifted(other.unsupported, shift),
        unknown_code=tuple(dict.fromkeys(one.unknown_code + other.unknown_code)),
        called=dict(Counter(one.called) + Counter(other.called)),
        implemented=tuple(dict.fromkeys(one.implemented + other.implemented)),
        copies=AllCopies(
            to_device=_copies(one.copies.to_device, other.copies.to_device),
            to_host=_copies(one.copies.to_host, other.copies.to_host),
            device=_copies(one.copies.device, other.copies.device),
        ),
    )


def _shifted(parts: tuple[Placed, ...], shift: int) -> tuple[Placed, ...]:
    return tuple(part.model_copy(update={"stack": part.stack + shift}) for part in parts)


def _copies(one: Copies, other: Copies) -> Copies:
    return Copies(
        count=one.count + other.count, bytes=one.bytes + other.bytes, kept=one.kept + other.kept
    )
