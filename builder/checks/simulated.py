"""The server of an image on simulated cards."""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from builder.checks.server import Mounts
from builder.core.errors import BuildError, UntriedError, WorldError
from builder.core.farm import installed
from builder.core.files import made_once
from builder.core.log import Log
from builder.core.platforms import GNU_TRIPLETS
from builder.docker import buildx
from builder.docker import engine as docker
from builder.engines.families import ENGINES, complete
from builder.engines.servers import FolderServer
from builder.image.contents import Contents
from builder.presets import cards
from builder.presets.cards import Card, Compute
from builder.recipes.catalog import Catalog
from builder.recipes.probes import Serve
from builder.recipes.schema import Recipe
from simulator import SimulatorError, report
from simulator.gguf import Header
from simulator.ledger import code_table
from simulator.receiver import Receiver, receiving
from simulator.report import Report

# One run of an image on simulated cards: the files and settings of its container, and its report.
#
# The libraries come first on LD_LIBRARY_PATH.  Files with DT_RPATH look there first (ld.so(8)), so
# for images that have such files the libraries are loaded into every program (LD_PRELOAD).  One
# library always is: it keeps programs from reading whole model files ahead.

LIBRARIES, CONFIGURATION, SOCKET = "/simulator/lib", "/simulator/config", "/simulator/report"
PTX = "/simulator/ptx"
OF_TORCH = "/simulator/torch"
"""What PyTorch and Triton load on a card that computes (``simulator/torch``)."""
KEPT = "/tmp"  # noqa: S108 - the container's: where the PTX of kernels made at run time is kept
SETTLE = 0.5  # seconds until a report is complete: twice the pause of its thread
VARIABLE = "BUILDER_SIMULATOR"
RUNTIME = "libcudart.so.13"
"""The library without which there is nothing to simulate: the base's CUDA runtime."""
PAGES = "libpages.so"
_OF_CUDA = ("libcudart", "libcublas", "libcublasLt")
STAND_INS = (*(f"{name}.so.{major}" for major in (13, 12) for name in _OF_CUDA), "libcuda.so.1")


@dataclass(frozen=True, slots=True)
class Simulation:
    """The files and settings by which a container runs on simulated cards, and its reports.

    A simulation is good for one container: ``receiver`` has the reports of one.
    """

    mounts: Mounts
    receiver: Receiver

    def report(self) -> Report | None:
        """All processes' reports as they are now; raises ``UntriedError``."""
        try:
            return report.read(self.receiver.messages())
        except SimulatorError as error:
            raise UntriedError(*error.args) from error

    def settled(self) -> Report | None:
        """All processes' reports, with all that happened until now; raises ``UntriedError``."""
        time.sleep(SETTLE)
        return self.report()


@contextmanager
def simulation(
    libraries: Path,
    files: Mapping[str, str],
    work: Path,
    *,
    search_path: str = "",
    preload: bool = False,
    ptx: Path | None = None,
) -> Iterator[Simulation]:
    """Write the configuration, ``files`` by name (``config_files``), below the directory ``work``,
    and receive reports.

    ``libraries`` come from ``libraries``; ``search_path`` is the image's own
    LD_LIBRARY_PATH; ``ptx`` is a directory that the container has as ``PTX``.
    """
    configuration = work / "config"
    configuration.mkdir(parents=True)
    configuration.chmod(0o755)  # the image's own user reads it
    for name, text in files.items():
        (configuration / name).write_text(text, "utf-8")
        (configuration / name).chmod(0o644)
    preloaded = (PAGES, *(STAND_INS if preload else ()))
    env = {
        VARIABLE: CONFIGURATION,
        "LD_LIBRARY_PATH": ":".join(filter(None, (LIBRARIES, search_path))),
        "LD_PRELOAD": ":".join(f"{LIBRARIES}/{name}" for name in preloaded),
    }
    volumes = {LIBRARIES: libraries, CONFIGURATION: configuration, SOCKET: work / "report"}
    if ptx is not None:
        volumes[PTX] = ptx
    with receiving(work, "report") as receiver:
        yield Simulation(Mounts(volumes, env), receiver)


# The simulator's libraries: compiled in a base's image, once for each base, and kept.

SOURCES = "simulator"
COMPILED = ("Dockerfile", "card", "ptx", "ptx/ops")  # the sources of the libraries
LOOPS = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx2": {"avx2", "fma", "bmi2"},
    "portable": set[str](),
}
"""The variants of the interpreter's loops, best first, and the flags of /proc/cpuinfo that each
needs (simulator/ptx/variants.cpp)."""


def sources() -> Path:
    """The sources of the libraries, from builder's own installation."""
    return installed() / SOURCES


def libraries(cache: Path, devel: str, log: Log, *, computes: bool = False) -> Path:
    """The directory of the libraries that were compiled in ``devel``, the base's image to compile
    in; they are compiled now if need be, without network.

    ``computes``: with mode compute, which takes most of the time.

    Raises ``UntriedError`` where the engine lacks that image, ``BuildError`` where the libraries do
    not compile, ``SpaceError`` where a disk is full.
    """
    image = compiling_image(devel)
    parts = {"COMPUTES": "1", "VARIANTS": _variants()} if computes else {"COMPUTES": "0"}
    key = key_of(sources(), f"{image.digest} {parts}")

    def make(made: Path, _: Path) -> None:
        what = ", which computes" if computes else ""
        log(f"compiling the simulator of the cards{what}, once for this base")
        arguments = {"BASE": devel, "CROSS": cross_prefix(image), **parts}
        if output := buildx.build_files(sources(), arguments, made):
            todo = f"it needs the headers of CUDA 13, and {devel} has others"
            raise BuildError("the simulator of the cards does not compile", output, todo)
        made.chmod(0o755)  # buildx makes it private; the image's own user reads it

    return made_once(cache, "simulator", key, log, make)


def _variants() -> str:
    """The variants of the interpreter's loops that the engine's machine needs: one where that is
    this machine, because each takes a minute to compile; all where it may be another."""
    cpu = Path("/proc/cpuinfo")
    if docker.engine().host != socket.gethostname() or not cpu.exists():
        return " ".join(LOOPS)
    return _best(cpu.read_text("utf-8", "replace"))


def _best(cpu: str) -> str:
    """The best variant for a machine, from its /proc/cpuinfo (proc(5)): arm64's names no flags."""
    flags = {*re.findall(r"\w+", cpu)}
    return next(name for name, needed in LOOPS.items() if needed <= flags)


def key_of(folder: Path, how: str, parts: Sequence[str] = COMPILED) -> str:
    """12 hex digits over the sources that are compiled, and a text that says how."""
    found = hashlib.sha256(how.encode())
    paths = [folder / part for part in parts]
    files = (path for part in paths for path in (part.iterdir() if part.is_dir() else [part]))
    for file in sorted(path for path in files if path.is_file() and path.suffix != ".md"):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        found.update(f"{file.relative_to(folder)} {content}\n".encode())
    return found.hexdigest()[:12]


def compiling_image(devel: str) -> docker.Image:
    """The image to compile in of a base; raises ``UntriedError`` where the engine lacks it."""
    image = docker.image(devel)
    if image is None:
        raise UntriedError(
            "Docker does not have the image to compile in",
            f"looked for {devel}",
            "`builder build` of any recipe on this base makes it",
        )
    return image


def cross_prefix(devel: docker.Image) -> str:
    """The prefix of the compiler: a base to compile in is of the machine that compiles."""
    return "" if devel.platform == buildx.TARGET else f"{GNU_TRIPLETS['amd64']}-"


# The files that configure the simulator's libraries: the cards, and the image's device code.

NORMAL = 1  # gguf.TokenType
# A word with the mark of a space before it, as SentencePiece (U+2581) and GPT-2 (U+0120) have it.
WORD = re.compile("[\u2581\u0120]?[A-Za-z][a-z]*")
WANTED = 8


def config_files(
    found: Sequence[Card],
    model: Header | None,
    code: str,
    compute: Compute | None = None,
    *,
    samples: bool = True,
) -> dict[str, str]:
    """The configuration by file name; ``code`` is the image's ``ledger.code_table``.

    Where nothing is computed, the vocabulary of the served model (None: no model is served) and
    some of its printable tokens decide the logits that the engine reads back.  ``samples``: the
    engine may choose tokens on the card; the ids that it reads back are zeros.
    """
    text = cards.text(
        found,
        vocabulary=model.vocabulary if model else 0,
        tokens=printable(model) if model else (),
        compute=compute,
        samples=samples,
    )
    return {"cards": text, "code": code}


def printable(header: Header, wanted: int = WANTED) -> tuple[int, ...]:
    """Ids of tokens that are plain words, so that a text of them prints; there may be none."""
    tokens = header.array("tokenizer.ggml.tokens")
    kinds = header.array("tokenizer.ggml.token_type")
    if tokens is None:
        return ()
    kept = kinds.first if kinds else (NORMAL,) * len(tokens.first)
    found = [
        number
        for number, (token, kind) in enumerate(zip(tokens.first, kept, strict=False))
        if kind == NORMAL and isinstance(token, str) and WORD.fullmatch(token)
    ]
    return tuple(found[:wanted])


# The server of an image on the cards.

SIMULATED = "linux/amd64"
"""The platform whose programs the simulator's libraries are for."""


@dataclass(frozen=True)
class SimulatedServer:
    """The server of an image of the engine.

    Its ``contents`` were read with the device code of the cards.
    """

    reference: str
    contents: Contents
    serve: Serve
    port: int
    devel: str
    """The base's image to compile in: the simulator's libraries are compiled there."""
    cache: Path
    log: Log
    folder: FolderServer | None = None
    """How it loads a model folder; None: the model is a file."""

    def on(
        self,
        cards: Sequence[Card],
        model: Header | None,
        work: Path,
        ptx: Path | None = None,
        *,
        races: bool = False,
        outputs: bool = False,
    ) -> AbstractContextManager[Simulation]:
        """The files and settings by which one container runs on cards, and its reports.

        ``model`` is served, None: no model is.  With ``ptx``, a directory with the PTX of the
        image's machine code, kernels are computed; without, they are counted.  ``races``: a
        race is a fault of its kernel; looking for it makes kernels slow.  ``outputs``:
        the report has a checksum of the values that each launch stored.  Raises ``UntriedError``
        where the device code of a file could not be read, and like ``libraries``.
        """
        return simulation(
            libraries(self.cache, self.devel, self.log, computes=ptx is not None),
            config_files(
                cards,
                model,
                self._code,
                Compute(PTX, races, outputs) if ptx else None,
                samples=self.folder is None or self.folder.samples,
            ),
            work,
            search_path=self._search_path,
            preload=self._preload,
            ptx=ptx,
        )

    @contextmanager
    def on_torch(self, cards: Sequence[Card], work: Path) -> Iterator[Simulation]:
        """As ``on``, for a server on PyTorch: kernels are computed whose PTX the wheels have or
        Triton makes; PyTorch's own operators are done by its code for CPUs."""
        own = {"PYTHONPATH": OF_TORCH, "SIMULATOR_PTX": KEPT}
        own |= self.folder.numbers_env if self.folder else {}
        with simulation(
            libraries(self.cache, self.devel, self.log, computes=True),
            config_files(cards, None, self._code, Compute(KEPT, False, False)),
            work,
            search_path=self._search_path,
            preload=self._preload,
        ) as made:
            volumes = {**made.mounts.volumes, OF_TORCH: sources() / "torch"}
            yield replace(made, mounts=Mounts(volumes, {**made.mounts.env, **own}))

    @cached_property
    def _code(self) -> str:
        """The code table, which has megabytes."""
        return code_table({each.path: each.fat_binaries for each in self.contents.libraries()})

    @property
    def _search_path(self) -> str:
        """LD_LIBRARY_PATH without the simulator; empty if it is not set."""
        return {**self.contents.environment, **self.serve.env}.get("LD_LIBRARY_PATH", "")

    @property
    def _preload(self) -> bool:
        """Whether a file looks for the runtime in its DT_RPATH, before LD_LIBRARY_PATH."""
        return any(
            parsed.rpath and not parsed.runpath and set(parsed.needed) & set(STAND_INS)
            for _, parsed in self.contents.elves()
        )


def why_never(catalog: Catalog, recipe: Recipe) -> str:
    """Why no image of a recipe is ever tried on a simulated card; empty: one for some platform is.

    Raises ``RecipeError`` where one of its bases is broken.
    """
    extends = any(catalog.base(name).recipe.published for name in catalog.chain(recipe.base))
    server_of = ENGINES[recipe.family].server_of
    on_platforms = [(complete(recipe.on(platform)), platform) for platform in recipe.platform]
    on_each = ((each, server_of(each), platform) for each, platform in on_platforms)
    reasons = [why_not(*each, extends=extends) for each in on_each]
    return "" if "" in reasons else reasons[0]


def why_not(recipe: Recipe, serve: Serve | None, platform: str, *, extends: bool) -> str:
    """Why an image of a recipe is not tried on a simulated card, whatever it contains; or empty.

    ``serve`` is how its server would be started; ``extends``: the image extends a published one.
    """
    if serve is None or recipe.image.port is None:
        return "the recipe does not say how its server starts ([serve])"
    if serve.no_device is not None:
        return serve.no_device
    if extends:
        return "the image extends another one, with a CUDA of its own"
    return "" if platform == SIMULATED else f"there are simulated cards for {SIMULATED} only"


# The PTX interpreter as a program: compiled on this machine, once for its sources.

INTERPRETER = ("ptx", "ptx/ops")
VARIANTS = "portable"  # enough for small kernels, and compiled in a third of the time
LINES = 15  # of the compiler's output in an error


def require_compiler() -> None:
    """Raise ``WorldError`` where this machine has no ``g++`` or no ``make``."""
    missing = [name for name in ("g++", "make") if shutil.which(name) is None]
    if missing:
        raise WorldError(
            f"this machine has no {' and no '.join(missing)}",
            "the PTX interpreter is compiled with them, and nvcc reads C++ headers with g++",
            "apt-get install g++ make",
        )


def ptx_program(cache: Path, log: Log) -> Path:
    """The program ``ptx``; it is compiled now if need be: two minutes of one core.

    Raises ``WorldError`` where this machine has no compiler, ``BuildError`` where the interpreter
    does not compile.
    """
    require_compiler()
    version = subprocess.run(
        ["g++", "-dumpfullversion"], capture_output=True, text=True, check=False
    )
    key = key_of(sources(), version.stdout.strip(), INTERPRETER)

    def make(made: Path, own: Path) -> None:
        log("compiling the PTX interpreter, once for these sources: about two minutes")
        where = [f"OUT={made}", f"BUILD={own}", f"VARIANTS={VARIANTS}"]
        command = ["make", "-C", str(sources() / "ptx"), *where, str(made / "ptx")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = "\n".join(done.stderr.splitlines()[-LINES:])
            what = "the PTX interpreter does not compile"
            raise BuildError(what, lines, "it needs g++ 12 or later")

    return made_once(cache, "interpreter", key, log, make) / "ptx"
