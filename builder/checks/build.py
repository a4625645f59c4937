"""The simulator's libraries: compiled in a base's image, once for each base, and kept."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.core.errors import BuildError, UntriedError
from builder.core.farm import installed
from builder.core.log import Log
from builder.core.made_once import made_once
from builder.core.platforms import GNU_TRIPLETS
from builder.docker import buildx
from builder.docker import engine as docker

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
        _compile(devel, {"CROSS": cross_prefix(image), **parts}, made)
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


def _compile(devel: str, arguments: Mapping[str, str], made: Path) -> None:
    """Build the last stage of the Dockerfile of the sources, and write its files to ``made``."""
    output = buildx.build_files(sources(), {"BASE": devel, **arguments}, made)
    if output:
        raise BuildError(
            "the simulator of the cards does not compile",
            output,
            f"it needs the headers of CUDA 13, and {devel} has others",
        )
