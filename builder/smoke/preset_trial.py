"""Check: a preset's server starts with exactly its arguments on its card, and fits.

The card is simulated (``builder.simulator``), and the model is one of the same shape and size with
holes for its weights (``builder.models.shapes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from builder.errors import BuilderError
from builder.families.device_code import no_code
from builder.kernels.selection import Capability
from builder.models import gguf, shapes
from builder.models.shapes.sizes import SizeError
from builder.presets import command, model_files
from builder.presets.schema import ModelFile, Preset
from builder.servers import test_model
from builder.servers.server import NotServingError, Server, ServeSpec, launched
from builder.simulator import frames, memory
from builder.simulator.figures import mib
from builder.simulator.report import Report
from builder.simulator.run import Simulation
from builder.smoke import device, gpu, serves
from builder.smoke.device_trial import lacked_room, refused
from builder.smoke.verdict import Check, PresetUse, timed
from builder.tools.docker.containers import NotRunnableError

LOADING = 600.0  # seconds until a server with a model of 20 GB is ready
TOLERANCE = 0.1  # share by which a run may take more than published: sources round, and add parts
SHOWN = 2  # refused allocations that a check names
PROJECTORS = "/projector"


class UntriedPresetError(Exception):
    """A preset cannot be tried on a simulated card; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Result:
    """The checks of a preset, and what its server took of the card; None: it was not tried."""

    checks: tuple[Check, ...]
    use: PresetUse | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A preset that is tried: its name, its server and the card."""

    name: str
    preset: Preset
    start: device.Start
    files: Mapping[str, Path]
    """Models by ``model``, ``draft`` and ``mmproj``."""


def check(
    name: str, preset: Preset, subject: device.Tried, test: device.DeviceTest, work: Path
) -> Result:
    """Start the server of the preset ``name``, send a request, and compare its memory.

    ``work`` is an empty directory.  Where it cannot be tried, the only check states the reason.
    """
    try:
        trial = _trial(name, preset, subject, test, work)
    except UntriedPresetError as error:
        # A kind of its own, so that no count of passed checks takes it for one of a preset.
        return Result((Check("not tried", name, "the reason", str(error), True),))
    use: list[PresetUse] = []
    checks = tuple(timed(_checks(trial, subject, test, work, use.append)))
    return Result(checks, *use)


def _trial(
    name: str, preset: Preset, subject: device.Tried, test: device.DeviceTest, work: Path
) -> Trial:
    """How the preset is tried, with its models written.  Raises ``UntriedPresetError``."""
    card = test.cards.get(preset.card)
    start = device.start_of(subject, card, f"there are no figures of the {preset.card} in cards/")
    if isinstance(start, str):
        raise UntriedPresetError(start)
    capability, recipe = Capability.parse(start.card.capability), subject.recipe
    if capability not in {Capability.of_arch(arch) for arch in recipe.cuda.arch}:
        raise UntriedPresetError(
            f"the image has {no_code(recipe, capability)}: it is that of its {preset.card}"
        )
    return Trial(name, preset, start, _models(preset, subject, work))


def _models(preset: Preset, subject: device.Tried, work: Path) -> dict[str, Path]:
    """Models of the same shape and size, by ``model``, ``draft`` and ``mmproj``.

    An engine that is given no model has the test model, which it does not read.
    """
    words = command.arguments(preset, subject.recipe, {"model": "{model}"})
    if not any("{model}" in word for word in words):
        file = work / f"{test_model.NAME}.gguf"
        test_model.write(file)
        return {"model": file}
    return {
        place: _written(model, work / f"{place}.gguf")
        for place, model in model_files.of_preset(preset).items()
    }


def _written(model: ModelFile, file: Path) -> Path:
    """A model of the same shape and size; raises ``UntriedPresetError``."""
    shape = shapes.PUBLISHED.get(model.repository or "")
    if shape is None:
        raise UntriedPresetError(f"the shape of {model.shown or 'its model'} is not known")
    if model.known_size is None:
        raise UntriedPresetError(f"the size of {model.shown} is not known")
    try:
        shapes.write(shape, file, model.known_size)
    except SizeError as error:
        raise UntriedPresetError(
            f"the size of {model.shown} is not one of its shape: {error}"
        ) from error
    file.chmod(0o644)
    return file


def _checks(
    trial: Trial,
    subject: device.Tried,
    test: device.DeviceTest,
    work: Path,
    on_use: Callable[[PresetUse], None],
) -> Iterator[Check]:
    name = trial.name
    try:
        with trial.files["model"].open("rb") as stream:
            header = gguf.read(stream)
        simulation = device.simulated(subject, trial.start, test, header, work, trial.preset.cards)
        with _launched(trial, subject, simulation) as server:
            yield from _of_server(trial, server, simulation, on_use)
    except NotRunnableError as error:
        yield Check("preset", f"{name}: starts", "its program runs", str(error), False)
    except BuilderError as error:
        yield Check("preset", name, "its server is started", str(error), None)


def _launched(
    trial: Trial, subject: device.Tried, simulation: Simulation
) -> AbstractContextManager[Server]:
    """The server with exactly the arguments of the preset, and a verbose log."""
    preset, files = trial.preset, trial.files
    places = {name: f"{{{name}}}" for name in ("model", "draft") if name in files}
    mounts = simulation.mounts
    if "mmproj" in files:
        places["mmproj"] = f"{PROJECTORS}/{files['mmproj'].name}"
        volumes = {**mounts.volumes, places["mmproj"]: files["mmproj"]}
        mounts = replace(mounts, volumes=volumes)
    serve = trial.start.serve.model_copy(
        update={
            "arguments": command.arguments(preset, subject.recipe, places),
            "env": {**trial.start.serve.env, **preset.serve.environment},
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
    return launched(subject.reference, serve, trial.start.port, spec)


def _of_server(
    trial: Trial, server: Server, simulation: Simulation, on_use: Callable[[PresetUse], None]
) -> Iterator[Check]:
    """The checks of a server that was started."""
    name, preset = trial.name, trial.preset
    where = f"{preset.cards} x {preset.card}" if preset.cards > 1 else preset.card
    expected = f"healthy within {LOADING:.0f} s on the simulated {where}"
    try:
        took = server.wait(LOADING)
    except NotServingError as error:
        report = simulation.report()
        faults = _refusals(report) if report else []
        unknown = bool(report and report.unsupported and not report.failed)
        text = "; ".join([*faults, str(error)])
        yield Check("preset", f"{name}: starts", expected, text, None if unknown else False)
        return
    yield Check("preset", f"{name}: starts", expected, f"after {took:.1f} s", True)
    placed = replace(gpu.placed(server), kind="preset", subject=f"{name}: model")
    yield placed
    if not placed.passed:
        return  # the CPU would answer, in minutes
    answer = serves.answered(
        server, f"{name}: answers", f"{serves.TOKENS} tokens", lambda: serves.completes(server)
    )
    yield replace(answer, kind="preset")
    report = simulation.settled()
    if report is None:
        none = "it called no function of CUDA"
        yield Check("preset", f"{name}: memory", "on the card", none, False)
        return
    use = _use(trial, report)
    on_use(use)
    yield _memory(trial, report, use)


def _refusals(report: Report) -> list[str]:
    """What the card refused; of many allocations, the last ones."""
    rooms = lacked_room(report, frames.named(report))[-SHOWN:]
    return [f"refused: {each}" for each in refused(report)] + [f"no room: {each}" for each in rooms]


def _use(trial: Trial, report: Report) -> PresetUse:
    kinds = memory.by_kind(report, frames.named(report))
    return PresetUse(
        identity=trial.preset.identity,
        context=trial.preset.serve.context or 0,
        card=trial.start.card.name,
        cards=trial.preset.cards,
        memory=sum(card.memory for card in report.cards),
        peak=report.peak,
        own=sum(card.context for card in report.cards),
        by_kind={kind: use.at_peak for kind, use in kinds.items()},
    )


def _memory(trial: Trial, report: Report, use: PresetUse) -> Check:
    """Every allocation had room, and all of them are what the source states, or less."""
    told = trial.preset.memory.whole if trial.preset.memory else None
    expected = f"within {mib(use.memory)}"
    if told is not None:
        expected += f", and {mib(told)} as published and {TOLERANCE:.0%} more"
    faults = _refusals(report)
    if told is not None and use.peak > told * (1 + TOLERANCE):
        faults.append(f"it takes {mib(use.peak - told)} more than published")
    kinds = [f"{kind} {mib(size)}" for kind, size in use.by_kind.items()]
    found = f"peak {mib(use.peak)}: {', '.join([*kinds, f'context {mib(use.own)}'])}"
    return Check(
        "preset", f"{trial.name}: memory", expected, "; ".join([*faults, found]), not faults
    )
