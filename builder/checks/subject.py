"""The input of a check: an image that has been read, and its subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from builder.checks.simulated import RUNTIME, SimulatedServer, why_not
from builder.checks.speed import RunSettings
from builder.checks.verdict import Check, DeviceUse
from builder.core.errors import BuilderError, UntriedError, listed
from builder.core.log import Log
from builder.core.platforms import Platform
from builder.docker import containers
from builder.docker import engine as docker
from builder.docker.containers import copy_out
from builder.docker.engine import Finished
from builder.engines.families import ENGINES
from builder.engines.servers import FolderServer
from builder.image.code_paths import CodePaths
from builder.image.contents import Contents
from builder.presets.cards import Card
from builder.presets.schema import Preset, PresetUse
from builder.recipes.catalog import known_exceptions
from builder.recipes.probes import Accept, Serve
from builder.recipes.schema import Recipe

RUNS, WARM_UPS = 10, 2
TOKENS, TINY_TOKENS = 2000, 256


@dataclass(frozen=True, slots=True)
class GpuTest:
    """The checks on a GPU.  Without ``model``, the test model with random weights is used."""

    model: Path | None = None
    draft: Path | None = None
    runs: int = RUNS
    warm_ups: int = WARM_UPS
    wanted: bool | None = None
    """None: if the engine offers a GPU."""

    def due(self) -> bool:
        """Whether to run the checks; raises ``WorldError`` if the engine does not answer."""
        return docker.engine().has_nvidia_runtime if self.wanted is None else self.wanted

    @property
    def settings(self) -> RunSettings:
        """The runs of the collapse test."""
        settings = RunSettings(tokens=TOKENS, runs=self.runs, warm_ups=self.warm_ups)
        return settings if self.model else replace(settings, prompt="Hello", tokens=TINY_TOKENS)


@dataclass(frozen=True, slots=True)
class DeviceTest:
    """The checks on simulated cards, and where the simulator's libraries are kept."""

    card: Card | None
    """None: no card that is known runs the recipe's code."""
    cache: Path
    log: Log
    cards: Mapping[str, Card] = field(default_factory=dict)
    """The cards of the recipe's presets, by the name of their file; unknown ones are absent."""


@dataclass(frozen=True, slots=True)
class NumbersTest:
    """The sources of the numbers of an image: PTX to compute, and a program to compare with."""

    ptx: Path
    """A directory with the PTX of its machine code: ``DIGEST.ptx``."""
    program: Path | str
    """The test-backend-ops of its source tree (``checks.kernel_test``), or why there is none."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An image of the engine, and all that its recipe asks of it."""

    reference: str
    digest: str
    """Its manifest's."""
    recipe: Recipe | None = None
    """None: only the checks that hold for every image are made."""
    platform: Platform = "linux/amd64"
    labels: Mapping[str, str] = field(default_factory=dict)
    devel: str | None = None
    """The base's image to compile in, with the driver's stub; an engine with ``vmm = true`` does
    not start without it."""
    gpu_test: GpuTest | None = None
    device_test: DeviceTest | None = None
    extended: docker.Image | None = None
    """The published image that it extends; some checks leave out its files."""
    cache: Path | None = None
    """The cache directory, which keeps scans of layers; None: they are not kept."""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    least_errors: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    """By case of the kernel test, the least error of verified images, and that image."""

    @property
    def published(self) -> docker.Image | None:
        """The image that it extends, if that is not a base of ours: those have ``devel``."""
        return self.extended if self.devel is None else None


# The rules of the static checks, and the files that a recipe exempts from them.

NAMED = 8  # offenders that a check names


class Rules:
    """Checks rules; remembers which exemptions of the recipe were used."""

    def __init__(self, accepted: Sequence[Accept] = (), known: Sequence[Accept] = ()) -> None:
        self._own = accepted
        self._accepted = [*accepted, *known]
        self._used: set[int] = set()

    def accepts(self, kind: str, path: str, description: str = "") -> Accept | None:
        """The exemption of ``path``, or of a case, from a check, or None."""
        for number, accept in enumerate(self._accepted):
            if accept.check == kind and accept.covers(path, description):
                self._used.add(number)
                return accept
        return None

    def check(
        self,
        kind: str,
        subject: str,
        expected: str,
        offenders: Iterable[tuple[str, str]],
        fine: str = "none",
    ) -> Check:
        """One check of a rule.

        ``offenders`` are the paths that break it, each with a description; ``fine`` is the finding
        if there are none.
        """
        left: list[str] = []
        accepted_for: Counter[str] = Counter()
        for path, description in offenders:
            accept = self.accepts(kind, path, description)
            if accept is None:
                left.append(description)
            else:
                accepted_for[accept.why] += 1
        found = listed(left, NAMED) or fine
        found += "".join(f"; accepted: {count} ({why})" for why, count in accepted_for.items())
        return Check.of(kind, subject, expected, found, not left)

    def unused(self) -> Iterator[Check]:
        """A failed check for each exemption of the recipe that nothing needs.

        Not of ``numbers``: whether a race shows depends on the order in which warps run; and not
        of ``vulnerabilities``: they are not checked here.
        """
        for number, accept in enumerate(self._own):
            if number not in self._used and accept.check not in {"numbers", "vulnerabilities"}:
                subject = f"{accept.check} {accept.covered}"
                expected = f"something that breaks the rule ({accept.why})"
                found = "nothing does: remove it from the recipe"
                yield Check.of("accept", subject, expected, found, False)


# The image that has been read.

TIMEOUT = 120.0  # seconds for a program to end
NO_SERVER = Serve(api_flavor="llama-server")
"""For an image whose other programs alone are run."""
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
    """Their sources; why there are none; the error that a check of them ends with."""
    checks: list[Check] = field(default_factory=list)
    code: tuple[CodePaths, ...] = ()
    device: DeviceUse | None = None
    presets: dict[str, PresetUse] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
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
        """What the recipe and all images of its family are exempted from."""
        recipe = self.subject.recipe
        own = recipe.accept if recipe else []
        return Rules(own, known_exceptions(recipe.family if recipe else ""))

    @cached_property
    def stub(self) -> Path | None:
        """A stub of the driver's library, for an engine that needs it.  Raises ``UntriedError``."""
        if not self.recipe.cuda.vmm or self.subject.devel is None or self.subject.extended:
            return None
        stub = self.work / "libcuda.so.1"
        copy_out(self.subject.devel, DRIVER_STUB, stub)
        return stub

    def run(self, program: str, arguments: Sequence[str]) -> Finished:
        """Run a program of the image without network.  Raises ``UntriedError``."""
        image, stub = self.subject.reference, self.stub
        return containers.run(
            image, arguments, entrypoint=program, timeout=TIMEOUT, driver_stub=stub
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
            return self.subject.device_test is not None and bool(self.computing)
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

    @property
    def computing(self) -> SimulatedServer:
        """``server``, for programs beside it: an image that has ggml's libraries may have a server
        that cannot be started."""
        names = {parsed.soname for _, parsed in self.contents.elves()}
        if self.recipe.serve is None and self.folder is None and "libggml-base.so.0" in names:
            return self._simulated(NO_SERVER)
        return self.server

    @cached_property
    def simulated(self) -> SimulatedServer:
        """The server, to be started on simulated cards with a model file or folder.

        Raises ``InapplicableError`` where it cannot be simulated.
        """
        return self._simulated(self.folder.serve if self.folder else self.recipe.serve)

    def _simulated(self, serve: Serve | None) -> SimulatedServer:
        subject, test, port = self.subject, self.subject.device_test, self.recipe.image.port
        platform, extends = self.contents.platform, subject.published is not None
        why = why_not(self.recipe, serve, platform, extends=extends)
        if why or serve is None or port is None or test is None:
            raise InapplicableError(why)
        if subject.devel is None:
            raise InapplicableError("the base has no image to compile in")
        if not any(parsed.soname == RUNTIME for _, parsed in self.contents.elves()):
            raise InapplicableError(f"the image has no {RUNTIME}")
        image = subject.reference, self.contents, serve, port, subject.devel
        return SimulatedServer(*image, test.cache, test.log, self.folder)


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


def excerpt(text: str) -> str:
    """The output of a program, shortened for a table."""
    words = " ".join(text.split())
    return words if len(words) <= 300 else words[:150] + " ... " + words[-150:]
