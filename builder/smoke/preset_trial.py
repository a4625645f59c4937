"""Check: a preset's server starts with exactly its arguments on its card, and fits.

The card is simulated (``builder.simulator``), and the model is one of the same shape and size with
holes for its weights (``builder.models.shapes``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.errors import BuilderError
from builder.families.device_code import no_code
from builder.kernels.selection import Capability
from builder.kernels.work import WorkPath, by_work, texts_by_work
from builder.models import gguf, shapes
from builder.models.shapes.sizes import SizeError
from builder.presets import command, model_files
from builder.presets.figures import ContextUse, PresetUse
from builder.presets.schema import ModelFile, Preset
from builder.recipes.schema import Recipe
from builder.servers import test_model
from builder.servers.client import UnansweredError
from builder.servers.fill import FILLED, fill
from builder.servers.server import NotServingError, Server, ServeSpec, launched
from builder.simulator import frames, memory
from builder.simulator.cards import Card
from builder.simulator.figures import mib
from builder.simulator.report import Report
from builder.simulator.run import Simulation
from builder.simulator.server import SimulatedServer
from builder.smoke import gpu, serves
from builder.smoke.context import Context, InapplicableError
from builder.smoke.device_trial import lacked_room, refused
from builder.smoke.verdict import Check, CheckState
from builder.tools import sizes
from builder.tools.docker.containers import NotRunnableError

LOADING = 600.0  # seconds until a server with a model of 20 GB is ready
TOLERANCE = 0.1  # share by which a run may take more than published: sources round, and add parts
SMALLER = 8192  # tokens of the second trial: memory is known for the contexts between both
SHOWN = 2  # refused allocations that a check names
PROJECTORS = "/projector"


@dataclass(frozen=True, slots=True)
class PresetTrial:
    """A preset that is tried: its name, its server, its card, and its models."""

    name: str
    preset: Preset
    server: SimulatedServer
    card: Card
    files: Mapping[str, Path]
    """Models by ``model``, ``draft`` and ``mmproj``."""


@dataclass(slots=True)
class Tried:
    """The result of a trial, filled while it runs: its later steps may raise."""

    checks: list[Check] = field(default_factory=list)
    use: PresetUse | None = None
    """The use of the card; None: no request was sent."""
    lacks_room: bool = False
    """Whether the card had no room for an allocation."""
    filled: int = 0
    """As in ``PresetUse``."""

    @property
    def faults(self) -> list[Check]:
        """The checks that did not pass."""
        return [each for each in self.checks if not each.passed]


def check(context: Context) -> Iterator[Check]:
    """Start the server of each preset, send a request, and compare its memory.

    Then start it once more with a small context.  ``context.presets`` gets each preset's use of its
    card.
    """
    for name, preset in context.subject.presets.items():
        with TemporaryDirectory(dir=context.work) as folder:
            Path(folder).chmod(0o755)  # the image's own user reads the models
            yield from _check(name, preset, context, Path(folder))


def _check(name: str, preset: Preset, context: Context, work: Path) -> Iterator[Check]:
    """The checks of a preset; where its models have no room, again with the least sizes that the
    source may have rounded."""
    tried = _tried(name, preset, context, work)
    files = model_files.of_preset(preset).values()
    rounded = [file for file in files if file.least_size != file.known_size]
    if rounded and tried.lacks_room:
        smaller = work / "least"
        smaller.mkdir()
        again = _tried(name, preset, context, smaller, least=True)
        if not again.faults:
            published = " and ".join(file.published_size or "" for file in rounded)
            least = " and ".join(sizes.shown(file.least_size or 0) for file in rounded)
            text = f"with {least}: the source rounds"
            yield Check.of("preset", f"{name}: size", f"fits with {published}", text, True)
            tried = again
    if tried.use is not None:
        context.presets[name] = tried.use
    yield from tried.checks


def _tried(
    name: str, preset: Preset, context: Context, work: Path, *, least: bool = False
) -> Tried:
    """A trial with models of the published sizes, or of the least ones."""
    tried, expected = Tried(), "its server is started"
    try:
        trial = _trial(name, preset, context, work, least=least)
        with trial.files["model"].open("rb") as stream:
            header = gguf.read(stream)
        report = _asked(trial, tried, context, header, work / "simulator", full=True)
        if report is not None:
            tried.use = use = replace(_use(trial, report), filled=tried.filled)
            tried.checks.append(_memory(trial, report, use))
            if preset.paths:
                tried.checks.append(check_paths(name, preset, use.paths))
            if use.context > SMALLER:
                _add_smaller(trial, tried, use, context, header, work / "smaller")
    except InapplicableError as error:
        tried.checks.append(Check.skipped("preset", name, expected, error))
    except NotRunnableError as error:
        failed = Check.of("preset", f"{name}: starts", "its program runs", str(error), False)
        tried.checks.append(failed)
    except BuilderError as error:
        tried.checks.append(Check.untried("preset", name, expected, error))
    return tried


def why_untried(preset: Preset, recipe: Recipe, cards: Mapping[str, Card]) -> str:
    """Why a preset cannot be tried, as far as its file, its recipe and ``cards`` show; or empty."""
    try:
        _card(preset, recipe, cards)
        for model in model_files.of_preset(preset).values():
            _shape(model, least=False)
    except InapplicableError as error:
        return str(error)
    return ""


def _trial(name: str, preset: Preset, context: Context, work: Path, *, least: bool) -> PresetTrial:
    """How the preset is tried, with its models written.  Raises ``InapplicableError``."""
    server, test, recipe = context.server, context.subject.device_test, context.recipe
    card = _card(preset, recipe, test.cards if test else {})
    return PresetTrial(name, preset, server, card, _models(preset, recipe, work, least=least))


def _card(preset: Preset, recipe: Recipe, cards: Mapping[str, Card]) -> Card:
    """The card of a preset; raises ``InapplicableError`` where it cannot run the image."""
    card = cards.get(preset.card)
    if card is None:
        raise InapplicableError(f"there are no figures of the {preset.card} in cards/")
    capability = Capability.parse(card.capability)
    if capability not in {Capability.of_arch(arch) for arch in recipe.cuda.arch}:
        why = no_code(recipe, capability)
        raise InapplicableError(f"its {preset.card} does not run the image, which has {why}")
    return card


def _models(preset: Preset, recipe: Recipe, work: Path, *, least: bool) -> dict[str, Path]:
    """Models of the same shape and size, by ``model``, ``draft`` and ``mmproj``.

    An engine that is given no model has the test model, which it does not read.
    """
    words = command.arguments(preset, recipe, {"model": "{model}"})
    if not any("{model}" in word for word in words):
        file = work / f"{test_model.NAME}.gguf"
        test_model.write(file)
        return {"model": file}
    return {
        place: _written(model, work / f"{place}.gguf", least=least)
        for place, model in model_files.of_preset(preset).items()
    }


def _shape(model: ModelFile, *, least: bool) -> tuple[str, int]:
    """The shape of a model, and its size in bytes; raises ``InapplicableError``."""
    if model.repository is None:
        raise InapplicableError(f"the preset does not name a file of {model.shown or 'its model'}")
    shape = shapes.published().get(model.repository)
    if shape is None:
        raise InapplicableError(f"the shape of {model.shown or 'its model'} is not known")
    size = model.least_size if least else model.known_size
    if size is None:
        raise InapplicableError(f"the size of {model.shown} is not known")
    return shape, size


def _written(model: ModelFile, file: Path, *, least: bool) -> Path:
    """A model of the same shape and size; raises ``InapplicableError``."""
    shape, size = _shape(model, least=least)
    try:
        shapes.write(shape, file, size)
    except SizeError as error:
        raise InapplicableError(
            f"the size of {model.shown} is not one of its shape: {error}"
        ) from error
    file.chmod(0o644)
    return file


def _launched(
    trial: PresetTrial, context: Context, simulation: Simulation
) -> AbstractContextManager[Server]:
    """The server with exactly the arguments of the preset, and a verbose log."""
    preset, files = trial.preset, trial.files
    places = {name: f"{{{name}}}" for name in ("model", "draft") if name in files}
    mounts = simulation.mounts
    if "mmproj" in files:
        places["mmproj"] = f"{PROJECTORS}/{files['mmproj'].name}"
        volumes = {**mounts.volumes, places["mmproj"]: files["mmproj"]}
        mounts = replace(mounts, volumes=volumes)
    serve = trial.server.serve.model_copy(
        update={
            "arguments": command.arguments(preset, context.recipe, places),
            "env": {**trial.server.serve.env, **preset.serve.environment},
            "gpu": [],
            "draft": [],
        }
    )
    spec = ServeSpec(
        files["model"],
        preset.serve.context or 0,
        files.get("draft"),
        simulator=mounts,
        verbose=True,
        limited=False,
    )
    return launched(trial.server.reference, serve, trial.server.port, spec)


def _asked(
    trial: PresetTrial,
    tried: Tried,
    context: Context,
    header: gguf.Header,
    work: Path,
    *,
    full: bool = False,
) -> Report | None:
    """Start the server and send a short request; ``full``: also one that fills its context.

    ``tried`` gets the checks.  The report after the short request, whose memory sources publish;
    None where a check says why there is none.
    """
    name, preset = trial.name, trial.preset
    where = f"{preset.cards} x {preset.card}" if preset.cards > 1 else preset.card
    expected = f"healthy within {LOADING:.0f} s on the simulated {where}"
    with (
        trial.server.on([trial.card] * preset.cards, header, work) as simulation,
        _launched(trial, context, simulation) as server,
    ):
        try:
            took = server.wait(LOADING)
        except NotServingError as error:
            ended = Check.of("preset", f"{name}: starts", expected, str(error), False)
            tried.checks.append(_explained(ended, tried, simulation.report()))
            return None
        after = f"after {took:.1f} s"
        tried.checks.append(Check.of("preset", f"{name}: starts", expected, after, True))
        placed = replace(gpu.placed(server), kind="preset", subject=f"{name}: model")
        tried.checks.append(placed)
        if not placed.passed:
            return None  # the CPU would answer, in minutes
        answer = serves.answered(
            server, f"{name}: answers", f"{serves.TOKENS} tokens", lambda: serves.completes(server)
        )
        tried.checks.append(replace(answer, kind="preset"))
        report = simulation.settled()
        if full and answer.passed and preset.serve.context:
            tried.checks.append(_filled(trial, tried, server, simulation))
    if report is None:
        none = "it called no function of CUDA"
        tried.checks.append(Check.of("preset", f"{name}: memory", "on the card", none, False))
        return None
    tried.lacks_room |= bool(report.failed)
    return report


def _filled(trial: PresetTrial, tried: Tried, server: Server, simulation: Simulation) -> Check:
    """A prompt fills the context: engines allocate more while they compute a long one.

    A refused allocation is no fault of a server that answers, as in ``fit.trial.evaluate``.
    """
    context = trial.preset.serve.context or 0

    def send() -> str:
        tokens = fill(server, context)
        if tokens < FILLED * context:
            raise UnansweredError(f"the prompts that it took have only {tokens} tokens")
        tried.filled = tokens
        return f"{tokens} tokens"

    expected = f"prompts of {context} tokens are answered"
    check = serves.answered(server, f"{trial.name}: full context", expected, send)
    check = replace(check, kind="preset")
    report = simulation.settled()
    if report is None or (check.passed and not report.violations):
        return check
    tried.filled = 0
    return _explained(check, tried, report)


def _explained(check: Check, tried: Tried, report: Report | None) -> Check:
    """A check that fails, with what the card refused; it is untried where a function is lacking."""
    if report is None:
        return check
    tried.lacks_room = bool(report.failed)
    unknown = report.unsupported and not report.failed
    state = CheckState.UNTRIED if unknown else CheckState.FAILED
    return replace(check, found="; ".join([*_refusals(report), check.found]), state=state)


def _add_smaller(
    trial: PresetTrial,
    tried: Tried,
    use: PresetUse,
    context: Context,
    header: gguf.Header,
    work: Path,
) -> None:
    """Try a small context too: ``tried`` gets its use of the card, and a check of its peak."""
    preset, small = trial.preset, Tried()
    serve = preset.serve.model_copy(update={"context": SMALLER})
    smaller = replace(trial, preset=preset.model_copy(update={"serve": serve}))
    subject = f"{trial.name}: memory with {SMALLER} tokens"
    expected = f"at most {mib(use.peak)}, as with {use.context}"
    report = _asked(smaller, small, context, header, work)
    if report is None or small.faults:
        tried.checks.append(replace(small.faults[0], subject=subject, expected=expected))
        return
    found = _use(smaller, report)
    tried.use = replace(use, smaller=ContextUse(SMALLER, found.peak, found.by_kind))
    text = f"peak {mib(found.peak)}"
    tried.checks.append(Check.of("preset", subject, expected, text, found.peak <= use.peak))


def _refusals(report: Report) -> list[str]:
    """The refusals of the card; of many, the last ones."""
    rooms = lacked_room(report, frames.named(report))[-SHOWN:]
    return [f"refused: {each}" for each in refused(report)] + [f"no room: {each}" for each in rooms]


def _use(trial: PresetTrial, report: Report) -> PresetUse:
    kinds = memory.by_kind(report, frames.named(report))
    return PresetUse(
        identity=trial.preset.identity,
        context=trial.preset.serve.context or 0,
        card=trial.card.name,
        cards=trial.preset.cards,
        memory=sum(card.memory for card in report.cards),
        peak=report.peak,
        own=sum(card.context for card in report.cards),
        by_kind={kind: use.at_peak for kind, use in kinds.items()},
        paths=report.paths,
    )


def check_paths(name: str, preset: Preset, taken: Sequence[WorkPath]) -> Check:
    """Each kind of work takes no other paths than the preset names, and at least one of them."""
    found, shown = by_work(taken), texts_by_work(taken)
    faults: list[str] = []
    fine: list[str] = []
    for work, allowed in preset.paths.items():
        texts = shown.get(work, "none")
        others = {each.path for each in found.get(work, [])} - {*allowed}
        (faults if others or texts == "none" else fine).append(f"{work}: {texts}")
    expected = "; ".join(f"{work}: {' or '.join(paths)}" for work, paths in preset.paths.items())
    return Check.of("preset", f"{name}: paths", expected, "; ".join(faults or fine), not faults)


def _memory(trial: PresetTrial, report: Report, use: PresetUse) -> Check:
    """Every allocation of a short request had room, and the peak is at most the memory that the
    source states."""
    stated = trial.preset.memory.whole if trial.preset.memory else None
    expected = f"within {mib(use.memory)}"
    if stated is not None:
        expected += f", and {mib(stated)} as published and {TOLERANCE:.0%} more"
    faults = _refusals(report)
    if stated is not None and use.peak > stated * (1 + TOLERANCE):
        faults.append(f"it takes {mib(use.peak - stated)} more than published")
    kinds = [f"{kind} {mib(size)}" for kind, size in use.by_kind.items()]
    found = f"peak {mib(use.peak)}: {', '.join([*kinds, f'context {mib(use.own)}'])}"
    return Check.of(
        "preset", f"{trial.name}: memory", expected, "; ".join([*faults, found]), not faults
    )
