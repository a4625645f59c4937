"""A started server on a simulated card: its requests, and the simulator's reports of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.checks import serves, simulated
from builder.checks.server import (
    FILLED,
    Server,
    ServeSpec,
    UnansweredError,
    fill,
    launched,
    shared_folder,
)
from builder.checks.serves import FOLDER_CONTEXT, FOLDER_NAME, Request, write_model_folder
from builder.checks.simulated import SimulatedServer, Simulation
from builder.checks.subject import (
    Context,
    InapplicableError,
    on_a_card,
)
from builder.checks.verdict import Check, CheckState, DeviceUse
from builder.core import sizes
from builder.core.errors import UsageError, listed
from builder.engines.device_code import no_code
from builder.engines.servers import ROUNDED, FolderServer, StatedLog
from builder.presets import cards, command, made_models, shapes
from builder.presets.cards import Card
from builder.presets.made_models import SizeError
from builder.presets.schema import ContextUse, ModelFile, Preset, PresetUse
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
from simulator.work import WorkPath, by_work, function_of, texts_by_work

ROUNDS, REQUESTS = 2, 2  # rounds of equal requests, and how many in each
LONG = 20 * "letters and a space. "  # a token a byte, with the test model
SHORT = LONG[: len(LONG) // 4]  # long enough for whatever a batch needs
# Bytes that the long prompt may take more than a short one: llama.cpp's pools take one block.
GROWTH = 4 * BLOCK
UNUSED = "it called no function of CUDA"
NAMED = 4  # kernels or functions that a check names
PTX = "compute_"  # how the code of a launch begins that the driver would compile
Stacks = Sequence[Sequence[Frame]]
FOLDER_STOP = 60  # seconds between SIGTERM and SIGKILL: vLLM takes eight on an idle machine


@dataclass(frozen=True, slots=True)
class DeviceTrial:
    """A started server on a simulated card.

    ``folder`` is how it loads a model folder: Python and PyTorch allocate, and its own log says
    what the memory is for.  None: its model is a file.
    """

    server: Server
    serve: Serve
    simulation: Simulation
    card: Card
    folder: FolderServer | None = None

    def use(self) -> DeviceUse | None:
        """The server's use of the card; None where it did not use it."""
        report, stated = self.simulation.report(), self._stated()
        if report is None:
            return None
        own = with_rest(report, stated.kinds) if stated else peaks(by_kind(report, named(report)))
        return DeviceUse(
            card=self.card.name,
            memory=sum(card.memory for card in report.cards),
            peak=report.peak,
            context=sum(card.context for card in report.cards),
            by_kind=own,
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
        if self.serve.refuses is not None:
            yield from serves.refuses(self.server, self.serve.seconds, "device")
            report = self.simulation.settled()
            yield from _refusals(report, named(report)) if report else ()
            return
        yield (started := serves.starts(self.server, self.serve.seconds, where, "device"))
        if not started.passed:
            report = self.simulation.report()
            yield from _refusals(report, named(report)) if report else ()
            return
        if (stated := self._stated()) is not None:
            yield check_loaded(stated)
        elif self.server.api_flavor.generates:
            yield serves.placed(self.server, "device")
        log = self.server.container.log()  # requests follow, which fill it
        for request in self._requests():
            yield (check := serves.answered(self.server, request, "device"))
            if not check.passed and "memory" not in check.subject:
                break  # those that follow would fail likewise
        yield serves.stops(self.server, FOLDER_STOP if self.folder else 0, "device")
        report = self.simulation.settled()
        if report is None:
            yield Check.of("device", "kernels", "launched on the card", UNUSED, False)
            return
        stacks = named(report)
        # Wheels have PTX for newer cards.
        yield check_kernels(report, compiled_too=self.folder is not None)
        yield from _refusals(report, stacks)
        if self.folder:
            yield check_stated(report, self.folder.read_log(log))
        else:
            kinds, figures = by_kind(report, stacks), logged(log)
            expected = "as its own log states" if figures else "counted by function"
            yield _memory(report, expected, peaks(kinds), disagreements(kinds, figures))

    def _stated(self) -> StatedLog | None:
        return self.folder.read_log(self.server.container.log()) if self.folder else None

    def _requests(self) -> Iterator[Request]:
        server, seconds = self.server, float(self.serve.seconds)
        if self.folder:  # none was made on the CPU; the first one compiles kernels
            first = partial(serves.completes, server, seconds=seconds)
            yield "answers first", f"within {self.serve.seconds} s", first
            yield from serves.requests_of(server)
        elif not server.api_flavor.generates:
            yield serves.request_of(server)
            yield "memory over requests", "equal requests take no more", self._leak
            return
        else:
            text = f"{serves.TOKENS} tokens of text"
            yield "completes text", text, partial(serves.completes, server)
            yield "answers two at once", "both in full", partial(serves.answers_two, server)
        tokens = f"one of {len(LONG)} tokens takes at most"
        prompt = f"{tokens} {mib(GROWTH)} more than one of {len(SHORT)}"
        yield "memory over requests", "equal requests take no more", self._leak
        yield "memory over prompts", prompt, self._growth

    def _leak(self) -> str:
        ask: Callable[[], str] = partial(serves.completes, self.server)
        if not self.server.api_flavor.generates:
            _, _, ask = serves.request_of(self.server)
        ask()
        reports = [_required(self.simulation.settled())]
        for _ in range(ROUNDS):
            for _ in range(REQUESTS):
                ask()
            reports.append(_required(self.simulation.settled()))
        growth = min(after.live - before.live for before, after in pairwise(reports))
        if growth <= 0:
            return f"{mib(reports[-1].live)} after each"
        by = _grown(reports[0], reports[-1], "live")
        raise UnansweredError(f"{mib(growth // REQUESTS)} more after each request, by {by}")

    def _growth(self) -> str:
        # What the first batch makes once, such as the workspace of cuBLAS, is no growth.
        serves.completes(self.server, SHORT)
        before = _required(self.simulation.settled())
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
        raise UnansweredError(UNUSED)
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
        yield Check.of("device", subject, expected, _listed(faults) or "none refused", not faults)
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
    found = f"{', '.join(f'{kind} {mib(size)}' for kind, size in parts.items())}; "
    found += f"peak {mib(report.peak)} of {mib(sum(card.memory for card in report.cards))}"
    if report.processes > 1:
        found += f"; the peaks of {report.processes} processes are added"
    return Check.of("device", "memory", expected, "; ".join([*wrong, found]), not wrong)


def _listed(names: Iterable[str]) -> str:
    return listed([*dict.fromkeys(names)], NAMED)


# Check on a simulated card: the image's server offloads its model, answers, and keeps within it.
#
# The server runs its own CUDA code on libraries that stand in for CUDA's (``simulator/card``).

CONTEXT = 2048  # tokens: a server may divide it among four requests at once
# Every library of the simulator is, or needs, one of them.
MARKS = {"libsimulator.so", simulated.PAGES}


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
        model, tokens, header = serves.test_model(image.serve, work), CONTEXT, None
        if model is not None and image.serve.model == "llama":
            with model.open("rb") as stream:
                header = gguf.read(stream)
    else:
        model, tokens, header = work / FOLDER_NAME, FOLDER_CONTEXT, None
        write_model_folder(model)
    with image.on([card], header, work / "simulator") as simulation:
        spec = ServeSpec(model, tokens, simulator=simulation.mounts, verbose=True)
        spec = replace(spec, compiles=folder is not None)
        with launched(image.reference, image.serve, image.port, spec) as server:
            trial = DeviceTrial(server, image.serve, simulation, card, folder)
            yield from trial.checks()
            context.device = trial.use()


# Check: a preset's server starts with exactly its arguments on its card, and fits.
#
# The card is simulated (``simulator/card``), and the model is one of the same shape and size with
# holes for its weights (``builder.presets.shapes``).

LOADING = 600.0  # seconds until a server with a model of 20 GB is ready
TOLERANCE = 0.1  # share by which a run may take more than published: sources round, and add parts
SMALLER = 8192  # tokens of the second trial: memory is known for the contexts between both
SHOWN = 2  # refused allocations that a check names
PROJECTORS = "/projector"


@dataclass(slots=True)
class PresetTrial:
    """A preset that is tried, and what came of it until now: later steps may raise."""

    name: str
    preset: Preset
    context: Context
    work: Path
    least: bool = False
    """Its models have the least sizes that the source may have rounded."""
    full: bool = True
    files: Mapping[str, Path] = field(default_factory=dict)
    report: Report | None = None
    """After the short request, whose memory sources publish; None: there was none."""
    use: PresetUse | None = None
    lacks_room: bool = False
    filled: int = 0

    @property
    def server(self) -> SimulatedServer:
        """Raises ``InapplicableError`` where it cannot be simulated."""
        return self.context.server

    @property
    def card(self) -> Card:
        """Raises ``InapplicableError`` where it cannot run the image."""
        test = self.context.subject.device_test
        return _card(self.preset, self.context.recipe, test.cards if test else {})

    def checks(self) -> Iterator[Check]:
        """All checks; ``use`` gets the use of the card.  Raises ``InapplicableError``."""
        _ = self.server, self.card  # where there is none, no model is written
        recipe = self.context.recipe
        self.files = _models(self.preset, recipe, self.work, least=self.least)
        yield from self._asked(self.work / "simulator")
        if self.report is None:
            return
        self.use = use = self._use(self.report)
        yield self._memory(self.report, use)
        if self.preset.paths:
            yield check_paths(self.name, self.preset, use.paths)
        if use.context > SMALLER:
            yield self._smaller(use)

    def _asked(self, work: Path) -> Iterator[Check]:
        """Start the server, send a short request, and one that fills its context."""
        name, preset = self.name, self.preset
        count = f"{preset.cards} x " if preset.cards > 1 else ""
        where = f" on the simulated {count}{preset.card}"
        with self.files["model"].open("rb") as stream:
            header = gguf.read(stream)
        with (
            self.server.on([self.card] * preset.cards, header, work) as simulation,
            self._launched(simulation) as server,
        ):
            started = serves.starts(server, LOADING, where, "preset", f"{name}: ")
            if not started.passed:
                yield self._explained(started, simulation.report())
                return
            yield started
            yield (placed := serves.placed(server, "preset", f"{name}: model"))
            if not placed.passed:
                return  # the CPU would answer, in minutes
            send = partial(serves.completes, server)
            request = (f"{name}: answers", f"{serves.TOKENS} tokens", send)
            yield (answer := serves.answered(server, request, "preset"))
            report = simulation.settled()
            if self.full and answer.passed and preset.serve.context:
                yield self._filled(server, simulation, preset.serve.context)
        if report is None:
            yield Check.of("preset", f"{name}: memory", "on the card", UNUSED, False)
            return
        self.lacks_room |= bool(report.failed)
        self.report = report

    def _launched(self, simulation: Simulation) -> AbstractContextManager[Server]:
        preset, files, mounts = self.preset, self.files, simulation.mounts
        places = {name: f"{{{name}}}" for name in ("model", "draft") if name in files}
        if "mmproj" in files:
            places["mmproj"] = f"{PROJECTORS}/{files['mmproj'].name}"
            volumes = {**mounts.volumes, places["mmproj"]: files["mmproj"]}
            mounts = replace(mounts, volumes=volumes)
        words = command.arguments(preset, self.context.recipe, places)
        env = {**self.server.serve.env, **preset.serve.environment}
        update = {"arguments": words, "env": env, "gpu": [], "draft": []}
        serve = self.server.serve.model_copy(update=update)
        spec = ServeSpec(files["model"], preset.serve.context or 0, files.get("draft"))
        spec = replace(spec, simulator=mounts, verbose=True, limited=False)
        return launched(self.server.reference, serve, self.server.port, spec)

    def _filled(self, server: Server, simulation: Simulation, context: int) -> Check:
        """A prompt fills the context: engines allocate more while they compute a long one.

        A refused allocation is no fault of a server that answers, as in ``presets.fit.evaluate``.
        """

        def send() -> str:
            tokens = fill(server, context)
            if tokens < FILLED * context:
                raise UnansweredError(f"the prompts that it took have only {tokens} tokens")
            self.filled = tokens
            return f"{tokens} tokens"

        request = f"{self.name}: full context", f"prompts of {context} tokens are answered", send
        check = serves.answered(server, request, "preset")
        report = simulation.settled()
        if report is None or (check.passed and not report.violations):
            return check
        self.filled = 0
        return self._explained(check, report)

    def _explained(self, check: Check, report: Report | None) -> Check:
        """A check that fails, with what the card refused; it is untried where a function lacks."""
        if report is None:
            return check
        self.lacks_room = bool(report.failed)
        unknown = report.unsupported and not report.failed
        state = CheckState.UNTRIED if unknown else CheckState.FAILED
        return replace(check, found="; ".join([*_refusals_of(report), check.found]), state=state)

    def _smaller(self, use: PresetUse) -> Check:
        """Try a small context too: ``use`` gets its use of the card."""
        serve = self.preset.serve.model_copy(update={"context": SMALLER})
        preset = self.preset.model_copy(update={"serve": serve})
        small = replace(self, preset=preset, full=False, filled=0, report=None)
        checks = small._asked(self.work / "smaller")
        faults = [check for check in checks if not check.passed]
        subject = f"{self.name}: memory with {SMALLER} tokens"
        expected = f"at most {mib(use.peak)}, as with {use.context}"
        if small.report is None or faults:
            return replace(faults[0], subject=subject, expected=expected)
        found = small._use(small.report)
        self.use = replace(use, smaller=ContextUse(SMALLER, found.peak, found.by_kind))
        text = f"peak {mib(found.peak)}"
        return Check.of("preset", subject, expected, text, found.peak <= use.peak)

    def _use(self, report: Report) -> PresetUse:
        return PresetUse(
            identity=self.preset.identity,
            context=self.preset.serve.context or 0,
            card=self.card.name,
            cards=self.preset.cards,
            memory=sum(card.memory for card in report.cards),
            peak=report.peak,
            own=sum(card.context for card in report.cards),
            by_kind=peaks(by_kind(report, named(report))),
            paths=report.paths,
            filled=self.filled,
        )

    def _memory(self, report: Report, use: PresetUse) -> Check:
        """Every allocation of a short request had room, and the peak is at most the memory that
        the source states."""
        stated = self.preset.memory.whole if self.preset.memory else None
        expected = f"within {mib(use.memory)}"
        if stated is not None:
            expected += f", and {mib(stated)} as published and {TOLERANCE:.0%} more"
        faults = _refusals_of(report)
        if stated is not None and use.peak > stated * (1 + TOLERANCE):
            faults.append(f"it takes {mib(use.peak - stated)} more than published")
        kinds = {**use.by_kind, "context": use.own}
        found = f"peak {mib(use.peak)}: "
        found += ", ".join(f"{kind} {mib(size)}" for kind, size in kinds.items())
        subject = f"{self.name}: memory"
        return Check.of("preset", subject, expected, "; ".join([*faults, found]), not faults)


def check_preset(context: Context) -> Iterator[Check]:
    """Start the server of each preset, send a request, and compare its memory.

    Then start it once more with a small context.  ``context.presets`` gets each preset's use of its
    card.
    """
    for name, preset in context.subject.presets.items():
        with TemporaryDirectory(dir=context.work) as folder:
            Path(folder).chmod(0o755)  # the image's own user reads the models
            yield from _check(PresetTrial(name, preset, context, Path(folder)))


def _check(trial: PresetTrial) -> Iterator[Check]:
    checks, files = _guarded(trial), trial.preset.files.values()
    # Where its models have no room, the least sizes are tried that the source may have rounded.
    rounded = [file for file in files if file.least_size != file.known_size]
    if rounded and trial.lacks_room:
        smaller = trial.work / "least"
        smaller.mkdir()
        again = PresetTrial(trial.name, trial.preset, trial.context, smaller, least=True)
        found = _guarded(again)
        if all(each.passed for each in found):
            published = " and ".join(file.published_size or "" for file in rounded)
            least = " and ".join(sizes.shown(file.least_size or 0) for file in rounded)
            text = f"with {least}: the source rounds"
            yield Check.of("preset", f"{trial.name}: size", f"fits with {published}", text, True)
            trial, checks = again, found
    if trial.use is not None:
        trial.context.presets[trial.name] = trial.use
    yield from checks


def _guarded(trial: PresetTrial) -> list[Check]:
    return [*on_a_card(trial.checks(), "preset", trial.name, "its server is started")]


def why_untried(preset: Preset, recipe: Recipe, cards: Mapping[str, Card]) -> str:
    """Why a preset cannot be tried, as far as its file, its recipe and ``cards`` show; or empty."""
    try:
        _card(preset, recipe, cards)
        for model in preset.files.values():
            _shape(model, least=False)
    except InapplicableError as error:
        return str(error)
    return ""


def _card(preset: Preset, recipe: Recipe, cards: Mapping[str, Card]) -> Card:
    card = cards.get(preset.card)
    if card is None:
        raise InapplicableError(f"there are no figures of the {preset.card} in cards/")
    capability = Capability.parse(card.capability)
    if capability not in {Capability.of_arch(arch) for arch in recipe.cuda.arch}:
        why = no_code(recipe, capability)
        raise InapplicableError(f"its {preset.card} does not run the image, which has {why}")
    return card


def _models(preset: Preset, recipe: Recipe, work: Path, *, least: bool) -> dict[str, Path]:
    """Models of the same shape and size, by ``model``, ``draft`` and ``mmproj``."""
    words = command.arguments(preset, recipe, {"model": "{model}"})
    if not any("{model}" in word for word in words):
        file = work / f"{serves.MODEL_NAME}.gguf"  # it is not read
        serves.write_model(file)
        return {"model": file}
    files = {place: work / f"{place}.gguf" for place in preset.files}
    for place, model in preset.files.items():
        shape, size = _shape(model, least=least)
        try:
            made_models.write_shape(shape, files[place], size)
        except SizeError as error:
            why = f"the size of {model.shown} is not one of its shape: {error}"
            raise InapplicableError(why) from error
        files[place].chmod(0o644)
    return files


def _shape(model: ModelFile, *, least: bool) -> tuple[str, int]:
    if model.repository is None:
        raise InapplicableError(f"the preset does not name a file of {model.shown or 'its model'}")
    shape = shapes.published_shape().get(model.repository)
    if shape is None:
        raise InapplicableError(f"the shape of {model.shown or 'its model'} is not known")
    size = model.least_size if least else model.known_size
    if size is None:
        raise InapplicableError(f"the size of {model.shown} is not known")
    return shape, size


def _refusals_of(report: Report) -> list[str]:
    """The refusals of the card; of many, the last ones."""
    rooms = lacked_room(report, named(report))[-SHOWN:]
    return [f"refused: {each}" for each in refused(report)] + [f"no room: {each}" for each in rooms]


def check_paths(name: str, preset: Preset, taken: Sequence[WorkPath]) -> Check:
    """Each kind of work takes no other paths than the preset names, and at least one of them."""
    found, shown = by_work(taken), texts_by_work(taken)
    faults, fine = list[str](), list[str]()
    for work, allowed in preset.paths.items():
        texts = shown.get(work, "none")
        others = {each.path for each in found.get(work, [])} - {*allowed}
        (faults if others or texts == "none" else fine).append(f"{work}: {texts}")
    expected = "; ".join(f"{work}: {' or '.join(paths)}" for work, paths in preset.paths.items())
    return Check.of("preset", f"{name}: paths", expected, "; ".join(faults or fine), not faults)
