"""The simulator's libraries: compiled in a base's image, once for each base, and kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from builder.errors import BuildError, SpaceError, UntriedError
from builder.farm import installed
from builder.platforms import GNU_TRIPLETS
from builder.tools.docker import buildx
from builder.tools.docker import engine as docker
from builder.tools.files import is_disk_full, mentions_full_disk, named_lock, workspace
from builder.tools.log import Log

SOURCES = "dockerfiles/simulator"
LINES = 15  # of the compiler's output in an error
UNUSED = 7 * 86400  # seconds without use after which libraries are removed


def sources() -> Path:
    """The sources of the libraries: those that builder was installed with."""
    return installed() / SOURCES


def libraries(cache: Path, devel: str, log: Log) -> Path:
    """The directory of the libraries that were compiled in ``devel``, the base's image to compile
    in; they are compiled now if need be, without network.

    Raises ``UntriedError`` where the engine lacks that image, ``BuildError`` where the libraries do
    not compile, ``SpaceError`` where a disk is full.
    """
    image = docker.image(devel)
    if image is None:
        raise UntriedError(
            "Docker does not have the image to compile in",
            f"looked for {devel}",
            "`builder build` of any recipe on this base makes it",
        )
    key = _key(sources(), image.digest)
    folder = cache / "simulator" / key
    if _use(folder):
        return folder
    with named_lock(cache, f"simulator-{key}", wait=log), workspace(cache) as work:
        if _use(folder):  # another run has compiled them
            return folder
        remove_unused(folder.parent)
        log("compiling the simulator of the cards, once for this base")
        made = work / "libraries"
        _compile(devel, _cross(image), made)
        made.chmod(0o755)  # buildx makes it private; the image's own user reads it
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            made.rename(folder)
        except OSError as error:
            if is_disk_full(error):
                raise SpaceError("a disk is full", f"{folder}: {error.strerror}") from error
            raise
    return folder


def _use(folder: Path) -> bool:
    """Whether there are such libraries; they count as used now."""
    with suppress(FileNotFoundError):
        os.utime(folder)
        return True
    return False


def remove_unused(folder: Path) -> None:
    """Remove libraries that no run has started to use for a week: those of other sources or
    bases.  No run is so long that one is still in use."""
    oldest = time.time() - UNUSED
    for found in folder.glob("*"):
        with suppress(FileNotFoundError):
            if found.stat().st_mtime < oldest:
                shutil.rmtree(found, ignore_errors=True)


def _key(folder: Path, digest: str) -> str:
    """12 hex digits over the sources and the image that they are compiled in."""
    found = hashlib.sha256(digest.encode())
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        found.update(f"{file.relative_to(folder)} {content}\n".encode())
    return found.hexdigest()[:12]


def _cross(devel: docker.Image) -> str:
    """The prefix of the compiler: a base to compile in is of the machine that compiles."""
    return "" if devel.platform == buildx.TARGET else f"{GNU_TRIPLETS['amd64']}-"


def _compile(devel: str, cross: str, made: Path) -> None:
    """Build the last stage of the Dockerfile of the sources, and write its files to ``made``."""
    lines: list[str] = []
    options = ["--network=none", "--provenance=false"]
    options += [f"--build-arg=BASE={devel}", f"--build-arg=CROSS={cross}"]
    options.append(f"--output={buildx.fields('type=local', f'dest={made}')}")
    status = buildx.build(buildx.builder(), [*options, str(sources())], lines.append)
    output = "\n".join(lines[-LINES:])
    if status != 0 and mentions_full_disk(output):
        raise buildx.full_disk(buildx.builder(), "the simulator was being compiled", made.parent)
    if status != 0:
        raise BuildError(
            "the simulator of the cards does not compile",
            output,
            f"it needs the headers of CUDA 13, and {devel} has others; see docs/simulator.md",
        )
