"""The input of a check: an image that has been read, and its subject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from builder.checks import run
from builder.checks.cases import known_faults
from builder.checks.rules import Rules
from builder.checks.simulated import SimulatedServer, why_not
from builder.checks.smoke_subject import NumbersTest, Subject
from builder.checks.verdict import Check, DeviceUse
from builder.core.errors import BuilderError, UntriedError
from builder.docker import containers, copies
from builder.docker import engine as docker
from builder.docker.client import Finished
from builder.engines.families import ENGINES
from builder.engines.family import FolderServer
from builder.image.code_paths import CodePaths
from builder.image.contents import Contents
from builder.presets.cards import Card
from builder.presets.figures import PresetUse
from builder.recipes.schema import Recipe

TIMEOUT = 120.0  # seconds for a program to end
DRIVER_STUB = "/usr/local/cuda/lib64/stubs/libcuda.so.1"


class InapplicableError(Exception):
    """A check does not apply to an image; the text is the reason."""


@dataclass
class Context:
    """An image that has been read, and the subject that it is checked against."""

    subject: Subject
    contents: Contents
    work: Path
    numbers: NumbersTest | str | BuilderError = "nothing is known of its build"
    """The sources of the comparison of its numbers; why there are none; the error that a check of
    them ends with."""
    checks: list[Check] = field(default_factory=list)
    code: tuple[CodePaths, ...] = ()
    """The device code of its libraries for every card, once it was checked."""
    device: DeviceUse | None = None
    """The server's use of a simulated card, once it ran on one."""
    presets: dict[str, PresetUse] = field(default_factory=dict)
    """The use of cards by the servers of presets, by name."""
    _helps: dict[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        """The recipe; raises ``ValueError`` where the image has none."""
        if self.subject.recipe is None:
            raise ValueError(f"{self.subject.reference} is checked without a recipe")
        return self.subject.recipe

    @cached_property
    def added(self) -> Contents:
        """The contents without the image that it extends."""
        extended = self.subject.extended
        return _above(self.contents, extended) if extended else self.contents

    @property
    def own(self) -> Contents:
        """The contents without a published image that it extends: all that the farm made."""
        return self.added if self.subject.published else self.contents

    @cached_property
    def rules(self) -> Rules:
        """What the recipe exempts from checks, and the known faults of ggml."""
        accepted = self.subject.recipe.accept if self.subject.recipe else []
        return Rules([*accepted, *known_faults()])

    @cached_property
    def stub(self) -> Path | None:
        """A stub of the driver's library, for an engine that needs it.  Raises ``UntriedError``."""
        if not self.recipe.cuda.vmm or self.subject.devel is None or self.subject.extended:
            return None
        stub = self.work / "libcuda.so.1"
        copies.copy_out(self.subject.devel, DRIVER_STUB, stub)
        return stub

    def run(self, program: str, arguments: Sequence[str]) -> Finished:
        """Run a program of the image without network.  Raises ``UntriedError``."""
        return containers.run(
            self.subject.reference,
            arguments,
            entrypoint=program,
            timeout=TIMEOUT,
            driver_stub=self.stub,
        )

    def help(self, entrypoint: Sequence[str], option: str = "--help") -> str:
        """The output of ``--help``, which is asked once.  Raises ``UntriedError``."""
        program, *arguments = asked = (*entrypoint, option)
        if asked not in self._helps:
            self._helps[asked] = self.run(program, arguments).output
        return self._helps[asked]

    @property
    def card(self) -> Card:
        """The card to be simulated; raises ``InapplicableError`` where none is known."""
        test = self.subject.device_test
        if test is None or test.card is None:
            raise InapplicableError(f"no card is known for {' '.join(self.recipe.cuda.arch)}")
        return test.card

    @property
    def numbers_test(self) -> NumbersTest:
        """The sources of the comparison of the image's numbers.

        Raises ``InapplicableError`` where it has none, ``BuilderError``.
        """
        if isinstance(self.numbers, str):
            raise InapplicableError(self.numbers)
        if isinstance(self.numbers, BuilderError):
            raise self.numbers
        return self.numbers

    @property
    def wants_numbers(self) -> bool:
        """Whether its numbers are compared, if ``numbers`` has their sources."""
        try:
            return self.subject.device_test is not None and bool(self.server)
        except InapplicableError:
            return False

    @property
    def folder(self) -> FolderServer | None:
        """How the server is started with a model folder; None: it is started with a file, or not
        at all."""
        return ENGINES[self.recipe.family].folder_of(self.recipe)

    @property
    def server(self) -> SimulatedServer:
        """``simulated``, where the server loads a model file."""
        if self.folder is not None:
            raise InapplicableError("its server loads a model folder, and the test models are GGUF")
        return self.simulated

    @cached_property
    def simulated(self) -> SimulatedServer:
        """The server, to be started on simulated cards with a model file or folder.

        Raises ``InapplicableError`` where it cannot be simulated.
        """
        subject, test, port = self.subject, self.subject.device_test, self.recipe.image.port
        serve = self.folder.serve if self.folder else self.recipe.serve
        platform, extends = self.contents.platform, subject.published is not None
        why = why_not(self.recipe, serve, platform, extends=extends)
        if why or serve is None or port is None or test is None:
            raise InapplicableError(why)
        if subject.devel is None:
            raise InapplicableError("the base has no image to compile in")
        if not any(parsed.soname == run.RUNTIME for _, parsed in self.contents.elves()):
            raise InapplicableError(f"the image has no {run.RUNTIME}")
        return SimulatedServer(
            subject.reference,
            self.contents,
            serve,
            port,
            subject.devel,
            test.cache,
            test.log,
            self.folder,
        )


def guarded(checks: Iterator[Check], kind: str, subject: str) -> Iterator[Check]:
    """A timeout becomes a failed check, a program that cannot be started an untried one."""
    try:
        yield from checks
    except containers.TimedOutError as error:
        yield Check.of(kind, subject, "an answer", str(error), False)
    except UntriedError as error:
        yield Check.untried(kind, subject, "an answer", error)


def on_a_card(checks: Iterator[Check], kind: str, subject: str, expected: str) -> Iterator[Check]:
    """Checks on a simulated card: one that does not apply is skipped, a server that the image does
    not have fails, and any other error says nothing about the image."""
    try:
        yield from checks
    except InapplicableError as error:
        yield Check.skipped(kind, subject, expected, error)
    except containers.NotRunnableError as error:
        yield Check.of(kind, subject, expected, str(error), False)
    except BuilderError as error:
        yield Check.untried(kind, subject, expected, error)


def _above(contents: Contents, extended: docker.Image) -> Contents:
    """The additions of an image to the image that it extends: layers, files, variables, labels."""
    layers = contents.layers[extended.layers :]
    paths = {file.path for layer in layers for file in layer.files}
    files = {path: file for path, file in contents.files.items() if path in paths}
    before, labels = extended.config.get("Env") or [], extended.config.get("Labels") or {}
    own = (contents.config.get("Labels") or {}).items()
    config = {
        "Env": [text for text in contents.config.get("Env") or [] if text not in before],
        "Labels": {name: text for name, text in own if labels.get(name) != text},
    }
    return Contents(files, {"config": config}, layers, sum(layer.size for layer in layers))
