"""Check on a simulated card: the image's server offloads its model, answers, and keeps within it.

The server runs its own CUDA code on libraries that stand in for CUDA's (``builder.simulator``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from builder.errors import BuilderError, UsageError
from builder.kernels.code_table import code_table
from builder.kernels.selection import Capability
from builder.models import gguf
from builder.models.gguf import Header
from builder.recipes.schema import Recipe, Serve
from builder.servers import test_model
from builder.servers.server import ServeSpec, launched
from builder.simulator import build, cards, config, run
from builder.simulator.cards import Card
from builder.simulator.run import Simulation
from builder.smoke.contents import Contents, ExtendedImage
from builder.smoke.device_trial import DeviceTrial
from builder.smoke.verdict import Check, DeviceUse, timed
from builder.tools.docker import containers
from builder.tools.docker.containers import NotRunnableError
from builder.tools.log import Log

SIMULATED = "linux/amd64"
"""The platform whose programs the simulator's libraries are for."""
CONTEXT = 2048  # tokens: a server may divide it among four requests at once
MARKS = {"libsimulator.so", run.PAGES}  # every library of the simulator is, or needs, one of them


@dataclass(frozen=True, slots=True)
class DeviceTest:
    """The checks on a simulated card, and where its libraries are kept."""

    card: Card | None
    """None: no card that is known runs the recipe's code."""
    cache: Path
    log: Log
    cards: Mapping[str, Card] = field(default_factory=dict)
    """The cards of the recipe's presets, by the name of their file; unknown ones are absent."""


def card_for(root: Path, recipe: Recipe, name: str | None) -> Card | None:
    """The card of that name; without one, that with the least memory of those that run the code.

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
            "name another card with --card, or none: one that runs the code is then chosen",
        )
    known = [cards.load(root, each) for each in cards.names(root)]
    fitting = [card for card in known if card.capability in wanted]
    return min(fitting, key=lambda card: card.memory, default=None)


@dataclass(frozen=True)
class Tried:
    """An image and what it is made from; ``devel`` is the base's image to compile in."""

    reference: str
    recipe: Recipe
    contents: Contents
    devel: str | None
    extended: ExtendedImage | None

    @cached_property
    def code(self) -> str:
        """Its code table, as ``code_of`` has it; it has megabytes."""
        return code_of(self.contents)


@dataclass(frozen=True, slots=True)
class Start:
    """What a server needs to start on a card."""

    serve: Serve
    port: int
    devel: str
    card: Card


@dataclass(frozen=True, slots=True)
class Result:
    """The checks, and what the server did with the card; None: it did not run."""

    checks: tuple[Check, ...]
    use: DeviceUse | None = None


def check_absent(contents: Contents) -> Check:
    """No layer has a library of the simulator, not even one that a later layer hides."""
    found = [
        file.path
        for layer in contents.layers
        for file in layer.files
        if file.elf is not None and MARKS & {file.elf.soname, *file.elf.needed}
    ]
    named = ", ".join(found) or "none"
    return Check("leftovers", "no library of the simulated cards", "none", named, not found)


def check(subject: Tried, device: DeviceTest, work: Path) -> Result:
    """Start the server with all layers on the simulated card, send requests, and stop it.

    ``work`` is an empty directory.  Where the server cannot be tried, the only check states the
    reason; it counts as passed.
    """
    lacking = f"no card is known for {' '.join(subject.recipe.cuda.arch)}"
    started = start_of(subject, device.card, lacking)
    if isinstance(started, str):
        # A kind of its own, so that no count of passed checks takes it for one on a device.
        return Result((Check("not tried", "a simulated card", "the reason", started, True),))
    use: list[DeviceUse | None] = []
    checks = tuple(timed(_checks(subject, started, device, work, use.append)))
    return Result(checks, *use)


def _checks(
    subject: Tried,
    start: Start,
    device: DeviceTest,
    work: Path,
    on_use: Callable[[DeviceUse | None], None],
) -> Iterator[Check]:
    """The checks of a server that can be tried; ``on_use`` gets what it did with the card."""
    try:
        with _launched(subject, start, device, work) as trial:
            yield from trial.checks()
            on_use(trial.use())
    except NotRunnableError as error:
        yield Check("device", "starts", "its program runs", str(error), False)
    except BuilderError as error:
        yield Check("device", "a server on a simulated card", "starts", str(error), None)


def start_of(subject: Tried, card: Card | None, lacking: str) -> Start | str:
    """How the server starts on a card; or why it cannot: without a card, that is ``lacking``."""
    serve, port = subject.recipe.serve, subject.recipe.image.port
    if serve is None or port is None:
        return "the recipe describes no server"
    if serve.no_device is not None:
        return serve.no_device
    if subject.extended is not None:
        return "the image extends another one, with a CUDA of its own"
    if subject.contents.platform != SIMULATED:
        return f"there are simulated cards for {SIMULATED} only"
    if subject.devel is None:
        return "the base has no image to compile in"
    if not any(parsed.soname == run.RUNTIME for _, parsed in subject.contents.elves()):
        return f"the image has no {run.RUNTIME}"
    if card is None:
        return lacking
    return Start(serve, port, subject.devel, card)


@contextmanager
def _launched(
    subject: Tried, start: Start, device: DeviceTest, work: Path
) -> Iterator[DeviceTrial]:
    """The image's server, started on the card with the test model.  Raises ``BuilderError``."""
    model = work / f"{test_model.NAME}.gguf"
    test_model.write(model)
    with model.open("rb") as stream:
        header = gguf.read(stream)
    simulation = simulated(subject, start, device, header, work)
    spec = ServeSpec(model, CONTEXT, simulator=simulation.mounts, verbose=True)
    with launched(subject.reference, start.serve, start.port, spec) as server:
        yield DeviceTrial(server, start.serve, simulation, start.card)


def simulated(
    subject: Tried, start: Start, device: DeviceTest, model: Header, work: Path, count: int = 1
) -> Simulation:
    """What the server gets to run on ``count`` of the cards.  Raises ``BuilderError``."""
    return run.prepare(
        build.libraries(device.cache, start.devel, device.log),
        config.files([start.card] * count, model, subject.code),
        work / "simulator",
        search_path=search_path(subject.contents, start.serve),
        preload=needs_preload(subject.contents),
    )


def code_of(contents: Contents) -> str:
    """The code table of an image that was read with its device code.

    Raises ``UntriedError`` where that of a file could not be read.
    """
    return code_table({each.path: each.fat_binaries for each in contents.libraries()})


def copied(reference: str, contents: Contents, folder: Path) -> dict[str, Path]:
    """Copies of the image's files with device code, by path, without CUDA's own: those are
    replaced."""
    paths = [
        file.path
        for file, parsed in contents.elves()
        if parsed.code and not file.shares and parsed.soname not in run.STAND_INS
    ]
    targets = {path: folder / f"{number}.elf" for number, path in enumerate(paths)}
    containers.copy_all_out(reference, targets)
    return targets


def search_path(contents: Contents, serve: Serve) -> str:
    """LD_LIBRARY_PATH of the image's server without the simulator; empty if it is not set."""
    return {**contents.environment, **serve.env}.get("LD_LIBRARY_PATH", "")


def needs_preload(contents: Contents) -> bool:
    """Whether a file looks for the runtime in its DT_RPATH, before LD_LIBRARY_PATH."""
    return any(
        parsed.rpath and not parsed.runpath and set(parsed.needed) & set(run.STAND_INS)
        for _, parsed in contents.elves()
    )
