"""The reports of the simulator's libraries: the use of the cards by a container's processes.

Each process sends JSON, anew while something changes (simulator/card).  The programs of the
image may send it, too: texts are made printable and short, numbers and lengths are bounded, and an
error never shows the message itself.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from simulator import MalformedElf, SimulatorError, elf
from simulator.work import WorkPath, demangled, function_of, paths_taken

LONGEST = 4096  # characters of a text: names of template functions have up to thousands
MOST = 1 << 14  # parts of one kind
CARDS = 64
DEPTH = 64  # frames of a stack (stacks.cpp)
RACE = "race: "
"""How a violation begins that did not end its kernel (ptx.h, Fault::Kind)."""
NOT_COMPUTED = "not computed"  # begins a violation that is a gap of the simulator (compute.cpp)


def _shown(text: str) -> str:
    """Text as it is safe to show and to publish: a line, without control characters."""
    if not text.isprintable():
        kept = (each for each in text if each.isspace() or unicodedata.category(each) != "Cc")
        words = "".join(
            each if each.isprintable() or each.isspace() else each.encode("unicode_escape").decode()
            for each in kept
        )
        text = " ".join(words.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


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
    shared: Number  # dynamic
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
        placed = (self.allocations, self.failed, self.violations, self.unsupported)
        on_cards = (self.allocations, self.failed, self.launches)
        for name, count, parts in (
            ("stack", len(self.stacks), placed),
            ("card", len(self.cards), on_cards),
            ("launch", len(self.launches), (self.outputs,)),
        ):
            if any(getattr(part, name) >= count for part in chain.from_iterable(parts)):
                raise ValueError(f"names a {name} that it does not have")
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
        """Whether something ended a kernel, and each time it was a gap of the simulator."""
        whys = [each.why for each in self.violations if not each.why.startswith(RACE)]
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
        # The place of the first fault: only the name of our field is shown.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = next((name for name in first["loc"] if name in Report.model_fields), "report")
        raise SimulatorError(
            f"process {process} of the container sent no report of the simulator",
            f"{place}: {first['msg']}",
            "a program of the image, and not the simulator, wrote to the simulator's socket",
        ) from None


def _merged(reports: Sequence[Report]) -> Report:
    """Several processes as one.

    The peak of a card counts the processes which had the most of it together, without the peaks
    of the others.  The work grows with the number of reports, not with its
    square: a hostile image sends hundreds of reports.
    """
    peaking = [
        _peaking(reports, card) for card in range(max(len(report.cards) for report in reports))
    ]
    reports = [_at_peak(report, number, peaking) for number, report in enumerate(reports)]
    called: Counter[str] = Counter()
    for report in reports:
        called.update(report.called)
    together = {
        "cards": tuple(_card(reports, card, group) for card, group in enumerate(peaking)),
        "processes": max((len(group) for group in peaking), default=1),
        "stacks": tuple(chain.from_iterable(report.stacks for report in reports)),
        "launches": tuple(chain.from_iterable(report.launches for report in reports)),
        "outputs": _moved(reports, "outputs", "launch", "launches"),
        "called": dict(called),
        "copies": AllCopies(**{each: _copies(reports, each) for each in AllCopies.model_fields}),
    }
    for name in ("allocations", "failed", "violations", "unsupported"):
        together[name] = _moved(reports, name, "stack", "stacks")
    for name in ("libraries", "unknown_code", "implemented"):
        parts = chain.from_iterable(getattr(report, name) for report in reports)
        together[name] = tuple(dict.fromkeys(parts))
    return reports[0].model_copy(update=together)


def _peaking(reports: Sequence[Report], card: int) -> dict[int, int]:
    """The processes on a card that ran at one time and whose peaks are the most together: these
    peaks, by the numbers of their reports."""
    users, changes = {}, []
    for number, report in enumerate(reports):
        if card < len(report.cards) and (peak := report.cards[card].peak):
            users[number] = report
            changes.append((report.began, peak))
            changes += [(max(report.began, report.ended), -peak)] if report.ended else []
    together = most = moment = 0
    for at, change in sorted(changes):  # a process that ends at a moment does not count there
        together += change
        if together > most:
            most, moment = together, at
    return {
        number: report.cards[card].peak
        for number, report in users.items()
        if report.began <= moment and (report.ended == 0 or report.ended > moment)
    }


def _card(reports: Sequence[Report], card: int, peaks: Mapping[int, int]) -> CardUse:
    uses = [report.cards[card] for report in reports if card < len(report.cards)]
    context, used = len(peaks) * uses[0].context, sum(use.used for use in uses)
    total = {"context": context, "used": used, "peak": sum(peaks.values())}
    return uses[0].model_copy(update=total)


def _at_peak(report: Report, number: int, peaking: Sequence[Mapping[int, int]]) -> Report:
    """The report with ``at_peak`` only where it is part of a card's peak."""
    kept = tuple(
        each if number in peaking[each.card] else each.model_copy(update={"at_peak": 0})
        for each in report.allocations
    )
    return report.model_copy(update={"allocations": kept})


def _moved(reports: Sequence[Report], name: str, index: str, target: str) -> tuple[Any, ...]:
    """The parts of all reports, each with its place among the stacks, or launches, of all."""
    found: list[ReportPart] = []
    first = 0
    for report in reports:
        for part in getattr(report, name):
            found.append(part.model_copy(update={index: getattr(part, index) + first}))
        first += len(getattr(report, target))
    return tuple(found)


def _copies(reports: Sequence[Report], direction: str) -> Copies:
    parts: list[Copies] = [getattr(report.copies, direction) for report in reports]
    totals = {name: sum(getattr(each, name) for each in parts) for name in Copies.model_fields}
    return parts[0].model_copy(update=totals)


# The frames of a report with the names of their functions.

Files = Callable[[str], Path | None]
"""The copy of a file of the image, by its path in it; None where there is none."""
OFFSET = re.compile("0x[0-9a-f]{1,16}")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack; ``function`` is empty where no symbol table names it."""

    file: str
    offset: int
    function: str

    def __str__(self) -> str:
        return self.function or f"{posixpath.basename(self.file)}+{self.offset:#x}"


def named(report: Report, files: Files = lambda _: None) -> list[list[Frame]]:
    """The stacks of a report, innermost frame first.

    A frame that the dynamic symbols do not name is looked up in the symbol table of its file.
    """

    @cache
    def functions(file: str) -> list[tuple[int, int, str]]:
        copy = files(file)
        try:
            with copy.open("rb") if copy else BytesIO() as stream:
                return elf.read_functions(stream)
        except (OSError, MalformedElf):
            return []

    def frame(text: str) -> Frame:
        place, _, symbol = text.partition(" ")
        file, _, offset = place.rpartition("+")
        at = int(offset, 16) if OFFSET.fullmatch(offset) else 0
        name = symbol.strip()
        if not name:
            after = bisect_right(functions(file), (at, 1 << 64, ""))
            [(start, end, found)] = functions(file)[after - 1 : after] or [(0, 0, "")]
            name = found if start <= at < end else ""
        return Frame(file, at, function_of(name) if name else "")

    return [[frame(text) for text in stack] for stack in report.stacks]


def caller_of(stack: Sequence[Frame], skipped: Sequence[str] = ()) -> str:
    """The innermost frame with a name that does not begin with one of ``skipped``."""
    named = (each for each in stack if each.function)
    wanted = [each for each in named if not each.function.startswith((*skipped,))]
    return str(next(iter(wanted or stack), "unknown"))


# Where two runs of a program on simulated cards part: the first launch that stored other bytes.


def parting(once: Report | None, again: Report | None, other: Report | None) -> str:
    """The first launch of ``other`` that differs from two equal runs of a program.

    Empty: no known launch differs, or a run has no report.
    """
    if once is None or again is None or other is None:
        return ""
    if first_difference(once, again):
        return "not known: the program stores other bytes in each run"
    return first_difference(once, other)


def first_difference(before: Report, after: Report) -> str:
    """The first launch that is not the same in both runs; empty: all known ones are.

    Both ran with checksums.  The launch read the same values, unless the
    program itself gave its kernels other memory, such as random numbers.
    """
    pairs = zip_longest(_launches(before), _launches(after))
    for number, (one, other) in enumerate(pairs, start=1):
        if one == other:
            continue
        name, another = (function_of(each[0]) if each else "none" for each in (one, other))
        if one and other and one[0] == other[0]:
            return f"launch {number}, {name}, stores other bytes"
        return f"launch {number} is of other kernels: {name}, {another}"
    return ""


def _launches(report: Report) -> Iterator[tuple[str, int]]:
    """The kernel's demangled name, and the checksum, of each launch; mangled names have hashes."""
    names = [demangled(each.kernel) for each in report.launches]
    return ((names[each.launch], each.checksum) for each in report.outputs)


# Device memory by purpose, from the functions that asked for it and from engines' logs.

MIB = 1 << 20
Kind = Literal["weights", "KV cache", "compute", "drafter", "projector", "other"]
KINDS: tuple[Kind, ...] = ("weights", "KV cache", "compute", "drafter", "projector", "other")
BLOCK = 2 * MIB  # large allocations are multiples of it

# Functions of llama.cpp (src/llama-model.cpp, src/llama-kv-cache.cpp, src/llama-memory-*.cpp,
# ggml/src/ggml-alloc.c, ggml/src/ggml-backend.cpp, ggml/src/ggml-cuda/, tools/mtmd/clip.cpp) and
# its forks.  All that a drafter or a projector asks for counts as drafter or projector
# (common/speculative.cpp: also a model's own MTP context); else the first pattern that the
# innermost frame matches decides, else the next frame's.
OWNERS: Sequence[tuple[str, Kind]] = (
    (r"^common_speculative", "drafter"),
    (r"^(clip|mtmd)_", "projector"),
)
FUNCTIONS: Sequence[tuple[str, Kind]] = (
    (r"^llama_(kv_cache|memory_|kv_self|ssm)", "KV cache"),
    (r"load_tensors|^llama_model_load|^llama_model_loader|^llama_adapter", "weights"),
    (r"^ggml_(gallocr|backend_sched|cuda_|backend_cuda_graph|backend_graph)", "compute"),
    (r"^llama_context|^llama_(de|en)code", "compute"),
    # ik_llama.cpp: the cache is made in a static function of this one's (src/llama.cpp).
    (r"^llama_init_from_model", "KV cache"),
)
# llama.cpp's logs: "CUDA0 model buffer size = 10038.14 MiB"; RS: the state of recurrent layers.
LOGGED = re.compile(
    r"CUDA(\d{1,3}) +(model|KV|RS|compute) buffer size *= *(\d{1,9}(?:\.\d{1,9})?) MiB"
)
OF_LOG: Mapping[str, Kind] = {"model": "weights", "KV": "KV cache", "RS": "KV cache"}


def mib(size: int) -> str:
    """``10038 MiB``; below 10 MiB with one decimal."""
    value = size / MIB
    return f"{value:.0f} MiB" if value >= 10 else f"{value:.1f} MiB"


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes of one kind; ``count`` is the number of allocations."""

    at_peak: int = 0
    live: int = 0
    count: int = 0


def kind_of(frames: Sequence[Frame]) -> Kind:
    """The purpose of an allocation with this stack."""
    for patterns, sought in ((OWNERS, reversed(frames)), (FUNCTIONS, iter(frames))):
        for frame in sought:
            for pattern, kind in patterns:
                if re.search(pattern, frame.function):
                    return kind
    return "other"


def by_kind(report: Report, stacks: Sequence[Sequence[Frame]]) -> dict[Kind, Use]:
    """The memory of all cards by kind, without the contexts; ``stacks`` are the report's, named."""
    found: dict[Kind, Use] = dict.fromkeys(KINDS, Use())
    for each in report.allocations:
        kind = kind_of(stacks[each.stack])
        if kind == "other" and each.function.startswith("cublas"):
            kind = "compute"  # the workspace of a handle
        before = found[kind]
        found[kind] = Use(
            before.at_peak + each.at_peak, before.live + each.live, before.count + each.count
        )
    return {kind: use for kind, use in found.items() if use.count}


def peaks(kinds: Mapping[Kind, Use]) -> dict[str, int]:
    """The bytes of each kind at the peak."""
    return {kind: use.at_peak for kind, use in kinds.items()}


def with_rest(report: Report, stated: Mapping[str, int]) -> dict[str, int]:
    """The memory that an engine's log states by kind, and the rest that was in use at the peak."""
    allocated = sum(each.at_peak for each in report.allocations)
    return {**stated, "other": max(allocated - sum(stated.values()), 0)}


def logged(log: str) -> dict[Kind, int]:
    """Bytes by kind, as an engine's own log states them; empty where it states none.

    The largest buffer for computing of each card counts: llama.cpp states them again when
    it reserves anew, and before it loads, for its own estimate (common/fit.cpp), where the weights
    and the cache have no bytes.
    """
    found: dict[Kind, int] = {}
    compute: dict[str, int] = {}
    for card, name, text in LOGGED.findall(log):
        size = round(float(text) * MIB)
        if name == "compute":
            compute[card] = max(size, compute.get(card, 0))
        else:
            found[OF_LOG[name]] = found.get(OF_LOG[name], 0) + size
    return found | ({"compute": sum(compute.values())} if compute else {})


def disagreements(found: Mapping[Kind, Use], stated: Mapping[Kind, int]) -> list[str]:
    """Where the log states more than was allocated, or, for weights and cache, less.

    Each allocation may be rounded up to a block.  The log does not tell a drafter's buffers from
    the model's: the drafter's memory counts as any of them.  More than the stated memory for
    computing is no disagreement: buffers are replaced, and pools grow at run time.
    """
    wrong = []
    for kind, size in stated.items():
        use, drafter = found.get(kind, Use()), found.get("drafter", Use())
        most = size + (use.count + 1) * BLOCK
        fixed = kind in {"weights", "KV cache"}
        lacking = use.at_peak + drafter.at_peak < size - MIB // 100
        if lacking or (fixed and use.at_peak > most):
            wrong.append(f"{kind}: {mib(use.at_peak)}, its log states {mib(size)}")
    return wrong
