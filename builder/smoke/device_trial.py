"""A started server on a simulated card: its requests, and the simulator's reports of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from builder.recipes.schema import Serve
from builder.servers.client import UnansweredError
from builder.servers.server import NotServingError, Server
from builder.simulator import frames, memory
from builder.simulator.cards import Card
from builder.simulator.figures import mib
from builder.simulator.frames import Frame
from builder.simulator.report import Allocation, Report
from builder.simulator.run import Simulation
from builder.smoke import gpu, serves
from builder.smoke.verdict import Check, DeviceUse
from builder.tools.demangle import function_of

ROUNDS, REQUESTS = 2, 2  # rounds of equal requests, and how many in each
LONG = 20 * "twenty bytes of text "  # a token a byte, with the test model
# Bytes that the long prompt may take more than a short one: llama.cpp's pools take one block.
GROWTH = 4 * memory.BLOCK
NAMED = 4  # kernels or functions that a check names
PTX = "compute_"  # how the code of a launch begins that the driver would compile
Stacks = Sequence[Sequence[Frame]]
Request = tuple[str, str, Callable[[], str]]
"""A request: subject, expectation, and a function that raises if it is not met."""


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    """A started server on a simulated card."""

    STOP: ClassVar[int | None] = None
    """Seconds between SIGTERM and SIGKILL; None: as for every server."""
    server: Server
    serve: Serve
    simulation: Simulation
    card: Card

    def use(self) -> DeviceUse | None:
        """The server's use of the card; None where it did not use it."""
        report = self.simulation.report()
        if report is None:
            return None
        return DeviceUse(
            card=self.card.name,
            memory=sum(card.memory for card in report.cards),
            peak=report.peak,
            context=sum(card.context for card in report.cards),
            by_kind=self._by_kind(report),
            launches=dict(_counts(report, "kernel")),
            code=dict(_counts(report, "code")),
            called=dict(report.called),
            implemented=len(report.implemented),
            paths=report.paths,
            stated=self._stated(),
        )

    def checks(self) -> Iterator[Check]:
        """All checks, from the server's start to its end."""
        started = self._started()
        yield started
        if not started.passed:
            report = self.simulation.report()
            yield from _refusals(report, frames.named(report)) if report else ()
            return
        yield replace(self._loaded(), kind="device")
        log = self.server.container.log()  # requests follow, which fill it
        yield from self._requests()
        yield replace(serves.stops(self.server, self.STOP), kind="device")
        report = self.simulation.settled()
        if report is None:
            none = "it called no function of CUDA"
            yield Check.of("device", "kernels", "launched on the card", none, False)
            return
        stacks = frames.named(report)
        yield self._kernels(report)
        yield from _refusals(report, stacks)
        yield self._memory(report, stacks, log)

    def _started(self) -> Check:
        """Whether it is ready in time."""
        expected = f"healthy within {self.serve.seconds} s on the simulated {self.card.name}"
        try:
            took = self.server.wait(self.serve.seconds)
        except NotServingError as error:
            return Check.of("device", "starts", expected, str(error), False)
        return Check.of("device", "starts", expected, f"after {took:.1f} s", True)

    def _loaded(self) -> Check:
        """Whether the model is on the card, by the server's own log."""
        return gpu.placed(self.server)

    def _kernels(self, report: Report) -> Check:
        return check_kernels(report)

    def _memory(self, report: Report, stacks: Stacks, log: str) -> Check:
        """The memory by kind, compared with the engine's own log."""
        kinds, stated = memory.by_kind(report, stacks), memory.logged(log)
        parts = [f"{kind} {mib(use.at_peak)}" for kind, use in kinds.items()]
        expected = "as its own log states" if stated else "counted by function"
        return memory_check(report, expected, parts, memory.disagreements(kinds, stated))

    def _stated(self) -> str:
        """What its own log says of its choices."""
        return ""

    def _by_kind(self, report: Report) -> Mapping[str, int]:
        """Bytes at the peak by kind, without the contexts."""
        kinds = memory.by_kind(report, frames.named(report))
        return {kind: use.at_peak for kind, use in kinds.items()}

    def _answers(self) -> Sequence[Request]:
        """The requests that are answered like any client's."""
        text = f"{serves.TOKENS} tokens of text"
        return (
            ("completes text", text, lambda: serves.completes(self.server)),
            ("answers two at once", "both in full", lambda: serves.answers_two(self.server)),
        )

    def _requests(self) -> Iterator[Check]:
        """The checks of requests, up to the first that is not answered."""
        prompt = f"a prompt of {len(LONG)} tokens takes at most {mib(GROWTH)} more"
        requests: list[Request] = [
            *self._answers(),
            ("memory over requests", "equal requests take no more", self._leak),
            ("memory over prompts", prompt, self._growth),
        ]
        for request in requests:
            check = serves.answered(self.server, *request)
            yield replace(check, kind="device")
            if not check.passed and "memory" not in check.subject:
                return  # those that follow would fail likewise

    def _leak(self) -> str:
        """Nothing grows from round to round; raises ``UnansweredError`` where something does."""
        serves.completes(self.server)
        reports = [_required(self.simulation.settled())]
        for _ in range(ROUNDS):
            for _ in range(REQUESTS):
                serves.completes(self.server)
            reports.append(_required(self.simulation.settled()))
        growth = min(after.live - before.live for before, after in pairwise(reports))
        if growth <= 0:
            return f"{mib(reports[-1].live)} after each"
        by = _grown(reports[0], reports[-1], "live")
        raise UnansweredError(f"{mib(growth // REQUESTS)} more after each request, by {by}")

    def _growth(self) -> str:
        """The peak does not follow the prompt; raises ``UnansweredError`` where it does."""
        before = _required(self.simulation.report())  # nothing happened since the last
        serves.completes(self.server, LONG)
        after = _required(self.simulation.settled())
        growth = after.peak - before.peak
        if growth <= 0:
            return "no more"
        found = f"{mib(growth)} more, by {_grown(before, after, 'at_peak')}"
        if growth > GROWTH:
            raise UnansweredError(found)
        return found


def _required(report: Report | None) -> Report:
    if report is None:
        raise UnansweredError("it called no function of CUDA")
    return report


def _grown(before: Report, after: Report, figure: str) -> str:
    """The function whose allocations grew most."""
    known = {_place(before, each): getattr(each, figure) for each in before.allocations}

    def grown(each: Allocation) -> int:
        return int(getattr(each, figure)) - int(known.get(_place(after, each), 0))

    most = max(after.allocations, key=grown)
    return frames.caller_of(frames.named(after)[most.stack])


def _place(report: Report, allocation: Allocation) -> tuple[object, ...]:
    return allocation.function, allocation.card, report.stacks[allocation.stack]


def _counts(report: Report, name: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for launch in report.launches:
        found[getattr(launch, name)] += launch.count
    return found


def check_kernels(report: Report, *, compiled_too: bool = False) -> Check:
    """How many kernels were launched, and from which code: the card runs it as it is.

    ``compiled_too``: code that the driver compiles at first use is named, and no fault.
    Of code that was not read from the image, only sizes of grids and blocks are checked.
    """
    codes = _counts(report, "code")
    found = f"{report.launched} launches of {len(report.kernels)} kernels"
    found += f" from {', '.join(sorted(codes))}" if codes else ""
    compiled = sorted({each.kernel for each in report.launches if each.code.startswith(PTX)})
    if compiled:
        found += f"; the driver would compile {_listed(map(function_of, compiled))} at first use"
    for code in report.unknown_code:
        found += f"; registers not known ({code.file}): {_listed(map(function_of, code.kernels))}"
    expected = "launched on the card" + ("" if compiled_too else ", as machine code")
    good = bool(report.launches) and (compiled_too or not compiled)
    return Check.of("device", "kernels", expected, found, good)


def refused(report: Report) -> list[str]:
    """The launches that the card refused."""
    return [f"{function_of(each.kernel)}: {each.why} ({each.error})" for each in report.violations]


def lacked_room(report: Report, stacks: Stacks) -> list[str]:
    """The allocations that the card had no room for."""
    return [
        f"{mib(each.requested)} by {frames.caller_of(stacks[each.stack])}, {mib(each.free)} free"
        for each in report.failed
    ]


def _refusals(report: Report, stacks: Stacks) -> Iterator[Check]:
    """The refusals of the card, or of the simulator."""
    yield _none("launches", "the card refuses none", refused(report))
    yield _none("allocations", "the card has room for all", lacked_room(report, stacks))
    lacking = [
        f"{each.function} by {frames.caller_of(stacks[each.stack])}" for each in report.unsupported
    ]
    if lacking:
        found = f"not simulated: {_listed(lacking)}"
        yield Check.untried("device", "functions", "all that it calls are simulated", found)


def _none(subject: str, expected: str, faults: Sequence[str]) -> Check:
    return Check.of("device", subject, expected, _listed(faults) or "none refused", not faults)


def memory_check(
    report: Report, expected: str, parts: Sequence[str], wrong: Sequence[str]
) -> Check:
    """The check of the memory: its ``parts`` as text, and what is ``wrong`` with them."""
    context = sum(card.context for card in report.cards)
    total = sum(card.memory for card in report.cards)
    found = f"{', '.join([*parts, f'context {mib(context)}'])}; peak {mib(report.peak)}"
    found += f" of {mib(total)}"
    if report.processes > 1:
        found += f"; the peaks of {report.processes} processes are added"
    return Check.of("device", "memory", expected, "; ".join([*wrong, found]), not wrong)


def _listed(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return "; ".join(found[:NAMED]) + more
