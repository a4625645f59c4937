"""The reports of the simulator's libraries: the use of the cards by a container's processes.

Each process sends JSON, anew while something changes (simulator/card).  The programs of the
image may send it, too: texts are made printable and short, numbers and lengths are bounded, and an
error never shows the message itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from simulator.errors import SimulatorError
from simulator.work import WorkPath, paths_taken

LONGEST = 4096  # characters of a text: names of template functions have up to thousands
MOST = 1 << 14  # parts of one kind
CARDS = 64
DEPTH = 64  # frames of a stack (stacks.cpp)
NOT_COMPUTED = "not computed"  # begins a violation that is a gap of the simulator (compute.cpp)


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _shown(text: str) -> str:
    """Text as it is safe to show and to publish."""
    line = text
    if not text.isprintable():
        kept = (each for each in text if each.isspace() or not _CONTROL.match(each))
        words = "".join(
            each if each.isprintable() or each.isspace() else each.encode("unicode_escape").decode()
            for each in kept
        )
        line = " ".join(words.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


Text = Annotated[str, AfterValidator(_shown)]
Number = Annotated[int, Field(ge=0, lt=1 << 64)]
Shape = tuple[Number, Number, Number]
"""Threads or blocks along x, y and z."""
Parts = Field(default=(), max_length=MOST, fail_fast=True)  # an error each were too many


class ReportPart(BaseModel):
    """The base class of all parts of a report; sizes are bytes."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class CardUse(ReportPart):
    """The memory of one card."""

    name: Text
    memory: Number
    context: Number
    """The context's own memory, which is part of ``used`` and ``peak``."""
    used: Number
    peak: Number


class Allocation(ReportPart):
    """The allocations of one place in the code."""

    stack: Number
    """Index into ``Report.stacks``."""
    card: Number
    function: Text
    count: Number
    live: Number
    """Bytes that are not freed."""
    at_peak: Number
    """Bytes that were not freed when the card's use was at its peak."""
    largest: Number


class Failed(ReportPart):
    """An allocation for which the card had no room."""

    stack: Number
    card: Number
    function: Text
    requested: Number
    free: Number


class KernelUse(ReportPart):
    """The launches of one kernel; the shapes are the largest."""

    kernel: Text
    file: Text
    code: Text
    """The code that the driver would run: "sm_120a"; "compute_120": PTX, which it would compile."""
    card: Number
    count: Number
    grid: Shape
    block: Shape
    shared: Number
    """Dynamic shared memory."""
    computed: Number = 0
    """How many of the launches were computed, to their end or to a fault."""
    instructions: Number = 0
    """Executed instructions, counted for each thread."""
    nanoseconds: Number = 0


class Output(ReportPart):
    """A launch that was computed, where the configuration asks for checksums."""

    launch: Number
    """Index into ``Report.launches``: its kernel."""
    checksum: Number
    """A sum over the bytes that the kernel stored to global memory."""


class Violation(ReportPart):
    """A launch that the card refuses, or a fault of a kernel that was computed."""

    kernel: Text
    error: Text
    why: Text
    grid: Annotated[tuple[Number, ...], Field(max_length=3)] = ()
    block: Annotated[tuple[Number, ...], Field(max_length=3)] = ()
    shared: Number = 0
    stack: Number
    count: Number


class Unsupported(ReportPart):
    """A function that was called and is not implemented."""

    function: Text
    count: Number
    stack: Number


class UnknownCode(ReportPart):
    """Device code that no file of the image has."""

    file: Text
    kernels: tuple[Text, ...] = Parts


class Copies(ReportPart):
    """Copies in one direction; ``kept`` are the bytes that can be read back."""

    count: Number = 0
    bytes: Number = 0
    kept: Number = 0


Stack = Annotated[tuple[Text, ...], Field(max_length=DEPTH, fail_fast=True)]
Placed = TypeVar("Placed", Allocation, Failed, Violation, Unsupported)
"""The parts that a stack belongs to."""


class AllCopies(ReportPart):
    """The copies by direction."""

    to_device: Copies = Copies()
    to_host: Copies = Copies()
    device: Copies = Copies()


class Report(ReportPart):
    """The use of the cards by one process, or by all processes of a container."""

    version: Literal[1]
    mode: Literal["count", "compute"] = "count"
    """Whether kernels were counted only, or computed."""
    began: Number = 0
    """When the process first used a card, in nanoseconds of the machine's clock."""
    ended: Number = 0
    """When the process ended by itself; 0: it did not, or was killed."""
    processes: Number = 1
    """The number of processes that ran at one time, whose peaks are added for a card."""
    command: tuple[Text, ...] = Parts
    libraries: tuple[Text, ...] = Parts
    """The CUDA libraries that were loaded, by path."""
    cards: Annotated[tuple[CardUse, ...], Field(max_length=CARDS, fail_fast=True)] = ()
    stacks: tuple[Stack, ...] = Parts
    """Frames "FILE+0xOFFSET SYMBOL", innermost first; the symbol may be missing."""
    allocations: tuple[Allocation, ...] = Parts
    failed: tuple[Failed, ...] = Parts
    launches: tuple[KernelUse, ...] = Parts
    outputs: tuple[Output, ...] = Parts
    """In the order of the launches, the first ones of each process."""
    violations: tuple[Violation, ...] = Parts
    unsupported: tuple[Unsupported, ...] = Parts
    unknown_code: tuple[UnknownCode, ...] = Parts
    called: Annotated[dict[Text, Number], Field(max_length=MOST)] = {}
    """Functions of CUDA, and how often each was called."""
    implemented: tuple[Text, ...] = Parts
    copies: AllCopies = AllCopies()

    @property
    def paths(self) -> tuple[WorkPath, ...]:
        """The paths that the engine took for its work."""
        return paths_taken(
            ((each.kernel, each.code, each.count) for each in self.launches), self.called
        )

    @model_validator(mode="after")
    def _places_exist(self) -> Self:
        placed: list[Allocation | Failed | Violation | Unsupported]
        placed = [*self.allocations, *self.failed, *self.violations, *self.unsupported]
        if any(part.stack >= len(self.stacks) for part in placed):
            raise ValueError("names a stack that it does not have")
        on_cards: list[Allocation | Failed | KernelUse]
        on_cards = [*self.allocations, *self.failed, *self.launches]
        if any(part.card >= len(self.cards) for part in on_cards):
            raise ValueError("names a card that it does not have")
        if any(output.launch >= len(self.launches) for output in self.outputs):
            raise ValueError("names a launch that it does not have")
        return self

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
    def computed(self) -> int:
        """How many of the launches were computed, to their end or to a fault."""
        return sum(each.computed for each in self.launches)

    @property
    def lacks_only(self) -> bool:
        """Whether it has violations, and each is a gap of the simulator."""
        whys = [each.why for each in self.violations]
        return bool(whys) and all(why.startswith(NOT_COMPUTED) for why in whys)

    @property
    def kernels(self) -> set[str]:
        """The kernels that were launched."""
        return {each.kernel for each in self.launches}


def read(messages: Mapping[int, bytes]) -> Report | None:
    """The reports of processes, by their ids, as one; None where none called a function of CUDA.

    Raises ``SimulatorError`` for a message that is no report.
    """
    found = [_parsed(process, message) for process, message in sorted(messages.items())]
    used = [report for report in found if report.called]
    return _merged(used) if used else None


def _parsed(process: int, message: bytes) -> Report:
    try:
        return Report.model_validate_json(message)
    except ValidationError as error:
        raise SimulatorError(
            f"process {process} of the container sent no report of the simulator",
            _fault(error),
            "a program of the image, and not the simulator, wrote to the simulator's socket",
        ) from None


def _fault(error: ValidationError) -> str:
    """The first fault, without the message: of its place, only the name of our field is shown."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = next((name for name in first["loc"] if name in Report.model_fields), "report")
    return f"{place}: {first['msg']}"


def _merged(reports: Sequence[Report]) -> Report:
    """Several processes as one.

    The peak of a card counts the processes which had the most of it together, without the peaks
    of the others.  The work grows with the number of reports, not with its
    square: a hostile image sends hundreds of reports.
    """
    count = max(len(report.cards) for report in reports)
    peaking = [_peaking(reports, card) for card in range(count)]
    cards = tuple(_card(reports, card, peaking[card]) for card in range(count))
    found = _together([_at_peak(report, peaking) for report in reports])
    most = max((len(group) for group in peaking), default=1)
    return found.model_copy(update={"cards": cards, "processes": most})


def _peaking(reports: Sequence[Report], card: int) -> list[Report]:
    """The processes on a card that ran at one time and whose peaks are the most together."""
    users = [report for report in reports if card < len(report.cards) and report.cards[card].peak]
    changes = [(report.began, report.cards[card].peak) for report in users]
    changes += [
        (max(report.began, report.ended), -report.cards[card].peak)
        for report in users
        if report.ended
    ]
    together = most = moment = 0
    for at, change in sorted(changes):  # a process that ends at a moment does not count there
        together += change
        if together > most:
            most, moment = together, at
    return [each for each in users if each.began <= moment and _lives_at(each, moment)]


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
    part_of = [any(report is other for other in group) for group in peaking]
    kept = tuple(
        each if part_of[each.card] else each.model_copy(update={"at_peak": 0})
        for each in report.allocations
    )
    return report.model_copy(update={"allocations": kept})


def _together(reports: Sequence[Report]) -> Report:
    """The parts of all reports, in their order."""
    called: Counter[str] = Counter()
    for report in reports:
        called.update(report.called)
    copies = [report.copies for report in reports]
    together = {
        "libraries": _distinct(report.libraries for report in reports),
        "stacks": tuple(chain.from_iterable(report.stacks for report in reports)),
        "allocations": _placed(reports, lambda report: report.allocations),
        "failed": _placed(reports, lambda report: report.failed),
        "launches": tuple(chain.from_iterable(report.launches for report in reports)),
        "outputs": tuple(_outputs(reports)),
        "violations": _placed(reports, lambda report: report.violations),
        "unsupported": _placed(reports, lambda report: report.unsupported),
        "unknown_code": _distinct(report.unknown_code for report in reports),
        "called": dict(called),
        "implemented": _distinct(report.implemented for report in reports),
        "copies": AllCopies(
            to_device=_copies(each.to_device for each in copies),
            to_host=_copies(each.to_host for each in copies),
            device=_copies(each.device for each in copies),
        ),
    }
    return reports[0].model_copy(update=together)


def _distinct(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(parts)))


def _placed(
    reports: Sequence[Report], parts_of: Callable[[Report], tuple[Placed, ...]]
) -> tuple[Placed, ...]:
    """The parts of all reports, each with the place of its stack among the stacks of all."""
    found: list[Placed] = []
    first = 0
    for report in reports:
        parts = parts_of(report)
        found += (part.model_copy(update={"stack": part.stack + first}) for part in parts)
        first += len(report.stacks)
    return tuple(found)


def _outputs(reports: Sequence[Report]) -> Iterator[Output]:
    """The outputs of all reports, each with the place of its launch among the launches of all."""
    first = 0
    for report in reports:
        for each in report.outputs:
            yield each.model_copy(update={"launch": each.launch + first})
        first += len(report.launches)


def _copies(parts: Iterable[Copies]) -> Copies:
    found = list(parts)
    return found[0].model_copy(
        update={
            "count": sum(each.count for each in found),
            "bytes": sum(each.bytes for each in found),
            "kept": sum(each.kept for each in found),
        }
    )
