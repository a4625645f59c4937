"""A started server on a simulated card: its requests, and the simulator's reports of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from builder.checks import gpu, serves, simulated, test_model
from builder.checks.answers import UnansweredError
from builder.checks.server import Server, ServeSpec, launched, shared_folder
from builder.checks.serves import Request
from builder.checks.simulated import Simulation
from builder.checks.subject import Context, on_a_card
from builder.checks.test_model import FOLDER_CONTEXT, FOLDER_NAME, write_folder
from builder.checks.verdict import Check, DeviceUse
from builder.core.errors import UsageError
from builder.engines.family import FolderServer
from builder.engines.logs import ROUNDED, StatedLog
from builder.presets import cards
from builder.presets.cards import Card
from builder.recipes.probes import Serve
from builder.recipes.schema import Recipe
from simulator import gguf
from simulator.report import (
    BLOCK,
    Allocation,
    Frame,
    Report,
    by_kind,
    caller_of,
    disagreements,
    logged,
    mib,
    named,
    peaks,
    with_rest,
)
from simulator.selection import Capability
from simulator.work import function_of

ROUNDS, REQUESTS = 2, 2  # rounds of equal requests, and how many in each
LONG = 20 * "twenty bytes of text "  # a token a byte, with the test model
# Bytes that the long prompt may take more than a short one: llama.cpp's pools take one block.
GROWTH = 4 * BLOCK
NAMED = 4  # kernels or functions that a check names
PTX = "compute_"  # how the code of a launch begins that the driver would compile
Stacks = Sequence[Sequence[Frame]]
FOLDER_STOP = 60  # seconds between SIGTERM and SIGKILL: vLLM takes eight on an idle machine


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    """A started server on a simulated card."""

    server: Server
    serve: Serve
    simulation: Simulation
    card: Card
    folder: FolderServer | None = None
    """How it loads a model folder: Python and PyTorch allocate, and its own log says what the
    memory is for.  None: its model is a file."""

    def use(self) -> DeviceUse | None:
        """The server's use of the card; None where it did not use it."""
        report, stated = self.simulation.report(), self._stated()
        if report is None:
            return None
        if stated is None:
            kinds = peaks(by_kind(report, named(report)))
        else:
            kinds = with_rest(report, stated.kinds)
        return DeviceUse(
            card=self.card.name,
            memory=sum(card.memory for card in report.cards),
            peak=report.peak,
            context=sum(card.context for card in report.cards),
            by_kind=kinds,
            launches=dict(_counts(report, "kernel")),
            code=dict(_counts(report, "code")),
            called=dict(report.called),
            implemented=len(report.implemented),
            paths=report.paths,
            stated=stated.text if stated else "",
        )

    def checks(self) -> Iterator[Check]:
        """All checks, from the server's start to its end."""
        where = f" on the simulated {self.card.name}"
        started = serves.starts(self.server, self.serve.seconds, where, "device")
        yield started
        if not started.passed:
            report = self.simulation.report()
            yield from _refusals(report, named(report)) if report else ()
            return
        stated = self._stated()
        yield check_loaded(stated) if stated else gpu.placed(self.server, "device")
        log = self.server.container.log()  # requests follow, which fill it
        for request in self._requests():
            check = serves.answered(self.server, request, "device")
            yield check
            if not check.passed and "memory" not in check.subject:
                break  # those that follow would fail likewise
        yield serves.stops(self.server, FOLDER_STOP if self.folder else 0, "device")
        report = self.simulation.settled()
        if report is None:
            none = "it called no function of CUDA"
            yield Check.of("device", "kernels", "launched on the card", none, False)
            return
        stacks = named(report)
        # Wheels have PTX for newer cards.
        yield check_kernels(report, compiled_too=self.folder is not None)
        yield from _refusals(report, stacks)
        if self.folder:
            yield check_stated(report, self.folder.read_log(log))
        else:
            yield _check_memory(report, stacks, log)

    def _stated(self) -> StatedLog | None:
        return self.folder.read_log(self.server.container.log()) if self.folder else None

    def _requests(self) -> Iterator[Request]:
        server, seconds = self.server, float(self.serve.seconds)
        if self.folder:  # none was made on the CPU; the first one compiles kernels
            first = partial(serves.completes, server, seconds=seconds)
            yield "answers first", f"within {self.serve.seconds} s", first
            yield from serves.requests_of(server)
        else:
            text = f"{serves.TOKENS} tokens of text"
            yield "completes text", text, partial(serves.completes, server)
            yield "answers two at once", "both in full", partial(serves.answers_two, server)
        prompt = f"a prompt of {len(LONG)} tokens takes at most {mib(GROWTH)} more"
        yield "memory over requests", "equal requests take no more", self._leak
        yield "memory over prompts", prompt, self._growth

    def _leak(self) -> str:
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
    known = {_place(before, each): getattr(each, figure) for each in before.allocations}

    def grown(each: Allocation) -> int:
        return int(getattr(each, figure)) - int(known.get(_place(after, each), 0))

    most = max(after.allocations, key=grown)
    return caller_of(named(after)[most.stack])


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
        f"{mib(each.requested)} by {caller_of(stacks[each.stack])}, {mib(each.free)} free"
        for each in report.failed
    ]


def _refusals(report: Report, stacks: Stacks) -> Iterator[Check]:
    for subject, expected, faults in (
        ("launches", "the card refuses none", refused(report)),
        ("allocations", "the card has room for all", lacked_room(report, stacks)),
    ):
        found = _listed(faults) or "none refused"
        yield Check.of("device", subject, expected, found, not faults)
    lacking = [f"{each.function} by {caller_of(stacks[each.stack])}" for each in report.unsupported]
    if lacking:
        found = f"not simulated: {_listed(lacking)}"
        yield Check.untried("device", "functions", "all that it calls are simulated", found)


def check_loaded(log: StatedLog) -> Check:
    """The log states a KV cache: its size, its tokens, or both."""
    found = log.text or "its log mentions no KV cache"
    stated = [size for size in (log.kv_cache, log.kv_tokens) if size is not None]
    loaded = bool(stated) and min(stated) > 0
    return Check.of("device", "model", "loaded, with a KV cache", found, loaded)


def _check_memory(report: Report, stacks: Stacks, log: str) -> Check:
    kinds, stated = by_kind(report, stacks), logged(log)
    expected = "as its own log states" if stated else "counted by function"
    return _memory(report, expected, peaks(kinds), disagreements(kinds, stated))


def check_stated(report: Report, log: StatedLog) -> Check:
    """The log states no more than was allocated, each figure within its rounding."""
    stated = sum(log.kinds.values())
    allocated = sum(each.at_peak for each in report.allocations)
    lacking = stated - allocated > 2 * ROUNDED
    wrong = [f"its log states {mib(stated)}, allocated were {mib(allocated)}"] if lacking else []
    kinds = with_rest(report, log.kinds)
    return _memory(report, "no less than its own log states", kinds, wrong)


def _memory(report: Report, expected: str, kinds: Mapping[str, int], wrong: Sequence[str]) -> Check:
    parts = {**kinds, "context": sum(card.context for card in report.cards)}
    total = sum(card.memory for card in report.cards)
    found = f"{', '.join(f'{kind} {mib(size)}' for kind, size in parts.items())}; "
    found += f"peak {mib(report.peak)} of {mib(total)}"
    if report.processes > 1:
        found += f"; the peaks of {report.processes} processes are added"
    return Check.of("device", "memory", expected, "; ".join([*wrong, found]), not wrong)


def _listed(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return "; ".join(found[:NAMED]) + more


# Check on a simulated card: the image's server offloads its model, answers, and keeps within it.
#
# The server runs its own CUDA code on libraries that stand in for CUDA's (``simulator/card``).

CONTEXT = 2048  # tokens: a server may divide it among four requests at once
MARKS = {
    "libsimulator.so",
    simulated.PAGES,
}  # every library of the simulator is, or needs, one of them


def card_for(root: Path, recipe: Recipe, name: str | None) -> Card | None:
    """The card of that name; without one, the smallest card that runs the code.

    ``root`` is the farm.  Raises ``UsageError`` for an unknown name and for a card that does not
    run the code, ``RecipeError`` where a card's file is invalid.
    """
    wanted = {str(Capability.of_arch(arch)) for arch in recipe.cuda.arch}
    if name is not None:
        card = cards.load(root, name)
        if card.capability in wanted:
            return card
        raise UsageError(
            f"the {card.name} does not run the code of {recipe.name}",
            f"it has compute capability {card.capability}, the recipe asks for "
            f"{' and '.join(sorted(wanted))}",
            "name another card with --card; without it, builder chooses one that runs the code",
        )
    fitting = [card for card in cards.every(root).values() if card.capability in wanted]
    return min(fitting, key=lambda card: card.memory, default=None)


def check_absent(context: Context) -> Iterator[Check]:
    """No layer has a library of the simulator, not even a hidden one."""
    found = [
        file.path
        for layer in context.contents.layers
        for file in layer.files
        if file.elf is not None and MARKS & {file.elf.soname, *file.elf.needed}
    ]
    named = ", ".join(found) or "none"
    yield Check.of("leftovers", "no library of the simulated cards", "none", named, not found)


def check_device(context: Context) -> Iterator[Check]:
    """Start the server with all layers on the simulated card, send requests, and stop it.

    ``context.device`` gets its use of the card.
    """
    return on_a_card(_checks(context), "device", "a server on a simulated card", "starts")


def _checks(context: Context) -> Iterator[Check]:
    folder, card, image = context.folder, context.card, context.simulated
    work = shared_folder(context.work / "device")
    if folder is None:
        model, tokens = work / f"{test_model.NAME}.gguf", CONTEXT
        test_model.write(model)
        with model.open("rb") as stream:
            header = gguf.read(stream)
    else:
        model, tokens, header = work / FOLDER_NAME, FOLDER_CONTEXT, None
        write_folder(model)
    with image.on([card], header, work / "simulator") as simulation:
        compiles = folder is not None
        spec = ServeSpec(
            model, tokens, simulator=simulation.mounts, verbose=True, compiles=compiles
        )
        with launched(image.reference, image.serve, image.port, spec) as server:
            trial = DeviceTrial(server, image.serve, simulation, card, folder)
            yield from trial.checks()
            context.device = trial.use()
