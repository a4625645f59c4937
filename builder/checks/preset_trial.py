"""Check: a preset's server starts with exactly its arguments on its card, and fits.

The card is simulated (``simulator/card``), and the model is one of the same shape and size with
holes for its weights (``builder.presets.shapes``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.checks import gpu, serves, test_model
from builder.checks.answers import UnansweredError
from builder.checks.device import lacked_room, refused
from builder.checks.server import FILLED, Server, ServeSpec, fill, launched
from builder.checks.simulated import SimulatedServer, Simulation
from builder.checks.subject import (
    Context,
    InapplicableError,
    excerpt,
    guarded,
    has_value,
    help_options,
    is_removed,
    on_a_card,
    option_text,
    option_values,
    placeholder_of,
)
from builder.checks.verdict import Check, CheckState
from builder.core import sizes
from builder.core.errors import suggestion
from builder.engines.device_code import no_code
from builder.presets import command, made_models, shapes
from builder.presets.cards import Card
from builder.presets.made_models import SizeError
from builder.presets.schema import ContextUse, ModelFile, Preset, PresetUse
from builder.recipes.schema import Recipe
from simulator import gguf
from simulator.report import Report, by_kind, mib, named, peaks
from simulator.selection import Capability
from simulator.work import WorkPath, by_work, texts_by_work

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
    """Whether the card had no room for an allocation."""
    filled: int = 0
    """As in ``PresetUse``."""

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
            placed = gpu.placed(server, "preset", f"{name}: model")
            yield placed
            if not placed.passed:
                return  # the CPU would answer, in minutes
            send = partial(serves.completes, server)
            request = (f"{name}: answers", f"{serves.TOKENS} tokens", send)
            answer = serves.answered(server, request, "preset")
            yield answer
            report = simulation.settled()
            if self.full and answer.passed and preset.serve.context:
                yield self._filled(server, simulation, preset.serve.context)
        if report is None:
            none = "it called no function of CUDA"
            yield Check.of("preset", f"{name}: memory", "on the card", none, False)
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
        serve = self.server.serve.model_copy(
            update={
                "arguments": command.arguments(preset, self.context.recipe, places),
                "env": {**self.server.serve.env, **preset.serve.environment},
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

        expected = f"prompts of {context} tokens are answered"
        request = (f"{self.name}: full context", expected, send)
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
        return replace(check, found="; ".join([*_refusals(report), check.found]), state=state)

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
        faults = _refusals(report)
        if stated is not None and use.peak > stated * (1 + TOLERANCE):
            faults.append(f"it takes {mib(use.peak - stated)} more than published")
        kinds = {**use.by_kind, "context": use.own}
        found = f"peak {mib(use.peak)}: "
        found += ", ".join(f"{kind} {mib(size)}" for kind, size in kinds.items())
        subject = f"{self.name}: memory"
        return Check.of("preset", subject, expected, "; ".join([*faults, found]), not faults)


def check(context: Context) -> Iterator[Check]:
    """Start the server of each preset, send a request, and compare its memory.

    Then start it once more with a small context.  ``context.presets`` gets each preset's use of its
    card.
    """
    for name, preset in context.subject.presets.items():
        with TemporaryDirectory(dir=context.work) as folder:
            Path(folder).chmod(0o755)  # the image's own user reads the models
            yield from _check(PresetTrial(name, preset, context, Path(folder)))


def _check(trial: PresetTrial) -> Iterator[Check]:
    checks = _guarded(trial)
    files = trial.preset.files.values()
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
        file = work / f"{test_model.NAME}.gguf"  # it is not read
        test_model.write(file)
        return {"model": file}
    return {
        place: _written(model, work / f"{place}.gguf", least=least)
        for place, model in preset.files.items()
    }


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


def _written(model: ModelFile, file: Path, *, least: bool) -> Path:
    shape, size = _shape(model, least=least)
    try:
        made_models.write_shape(shape, file, size)
    except SizeError as error:
        raise InapplicableError(
            f"the size of {model.shown} is not one of its shape: {error}"
        ) from error
    file.chmod(0o644)
    return file


def _refusals(report: Report) -> list[str]:
    """The refusals of the card; of many, the last ones."""
    rooms = lacked_room(report, named(report))[-SHOWN:]
    return [f"refused: {each}" for each in refused(report)] + [f"no room: {each}" for each in rooms]


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


# Check: the image's engine has every option of a preset, and takes its value.
#
# The engine's own ``--help`` decides, as for the recipe's probes of options.

# vLLM (vllm/entrypoints: VLLM_SUBCMD_PARSER_EPILOG): --help alone names the groups of options.
ALL_GROUPS = "--help=all"
VARIABLE = re.compile(r"\(env: (\w+)\)")  # llama.cpp, common/arg.cpp
OPTION_VARIABLE = "LLAMA_ARG_"
NUMBER = re.compile(r"-?\d+(\.\d+)?")
NUMBERS = {"N", "n", "<n>"}  # placeholders for a number in llama.cpp's --help


def check_preset_options(context: Context) -> Iterator[Check]:
    """One check of all options of each preset."""
    before = context.subject.extended.config if context.subject.extended else {}
    entrypoint = (*(context.recipe.image.entrypoint or before.get("Entrypoint") or []),)
    for name, preset in context.subject.presets.items():
        checks = _check_preset_options(f"{name}: options", preset, context, entrypoint)
        yield from guarded(checks, "preset", name)


def _check_preset_options(
    subject: str, preset: Preset, context: Context, entrypoint: tuple[str, ...]
) -> Iterator[Check]:
    expected = "each is in --help and takes its value"
    text = context.help(entrypoint)
    if ALL_GROUPS in text:
        text = context.help(entrypoint, ALL_GROUPS)
    if not help_options(text):
        yield Check.skipped("preset", subject, expected, "its --help lists no option")
        return
    places = {place: place.upper() for place in preset.files}
    words = command.arguments(preset, context.recipe, places)
    wrong = option_faults(words, preset.serve.environment, text)
    found = "; ".join(wrong) or f"all {len(_groups(words))}"
    yield Check.of("preset", subject, expected, found, not wrong)


def option_faults(words: Sequence[str], environment: Mapping[str, str], text: str) -> list[str]:
    """The problems of arguments and variables, by the engine's ``--help``, ``text``."""
    found = [fault for group in _groups(words) for fault in _faults(group, text)]
    return found + _unknown_variables(environment, text)


def _groups(words: Sequence[str]) -> list[list[str]]:
    """Each option with its values; a model without an option, as vLLM takes it, is left out."""
    return [group for group in command.groups(words) if command.option_of(group[0])]


def _faults(group: Sequence[str], text: str) -> Iterator[str]:
    name, joined, value = group[0].partition("=")
    values = [value] if joined else group[1:]
    about = option_text(text, name)
    if about is None:
        yield f"{name} is not listed{suggestion(name, help_options(text))}"
        return
    if is_removed(about):
        yield f"{name} was removed: {excerpt(about)}"
        return
    placeholder = placeholder_of(about)
    if values and not placeholder:
        yield f"{name} takes no value, and gets {' '.join(values)}"
    elif placeholder and not values and not placeholder.startswith("["):
        yield f"{name} gets no value for {placeholder}"
    else:
        yield from (fault for each in values for fault in _value_fault(name, each, about))


def _value_fault(name: str, value: str, about: str) -> Iterator[str]:
    """Why the option whose text is ``about`` does not take a value.  Only words are compared."""
    if NUMBER.fullmatch(value) or value.startswith("{"):
        return
    listed = option_values(about)
    placeholder = placeholder_of(about)
    if listed is not None:
        lacking = [part for part in value.split(",") if part not in listed]
        if lacking:
            yield f"{name} does not have {', '.join(lacking)}, only {', '.join(sorted(listed))}"
    elif placeholder in NUMBERS and not has_value(about, None, value):
        yield f"{name} gets {value} for the number {placeholder}"


def _unknown_variables(environment: Mapping[str, str], text: str) -> list[str]:
    known = set(VARIABLE.findall(text))
    return [
        f"{name} is the variable of no option"
        for name in environment
        if name.startswith(OPTION_VARIABLE) and name not in known
    ]
