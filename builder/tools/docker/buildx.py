"""buildx: builders, builds and bake files.

A builder is a BuildKit: the engine's own, or one in a container, on another machine, in a cluster
(https://docs.docker.com/build/builders/drivers/).
"""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from builder.errors import BuildError, SpaceError, WorldError
from builder.tools import files
from builder.tools.docker import engine as docker
from builder.tools.pipes import output_of

TARGET = "linux/amd64"  # what images are for
FIELD = re.compile(r"(?m)^(Driver|Error|Platforms): *(.*)$")
HINT = "`docker buildx ls` lists the builders, `docker buildx create` makes one"


@dataclass(frozen=True, slots=True)
class Builder:
    """A BuildKit that buildx knows by ``name``."""

    name: str
    architecture: str
    """Of the machine that compiles, as ``uname -m`` or Docker names it."""
    is_engine: bool = True
    """It is the engine itself: both have the same images."""
    needs_context: bool = True
    """It is the engine of the Docker context of its name; buildx accepts it only in that context.
    """


@cache
def builder(name: str = "") -> Builder:
    """The builder of that name; without a name the engine's own, not that of `docker buildx use`.

    The engine's own has the name of Docker's context.  Another one is started where it does not
    run.  Raises ``WorldError`` where there is none of that name, or it does not answer.
    """
    own = docker.context()
    if name in {"", own}:
        return Builder(own, docker.engine().architecture)
    return _inspect(name)


def platforms(name: str = "") -> list[str]:
    """The platforms whose programs a builder runs, its own first: "linux/amd64".

    Raises ``WorldError`` where it does not answer.
    """
    found = _fields(name or docker.context())
    listed = [value for key, value in found if key == "Platforms"]
    return list(dict.fromkeys(each.strip(" *") for each in ",".join(listed).split(",")))


def _inspect(name: str) -> Builder:
    """A builder as ``buildx inspect`` shows it; raises ``WorldError``."""
    found = _fields(name)
    # The first platform of a node is its own; after it come those that it emulates.
    native = [value.split(",")[0].strip(" *") for key, value in found if key == "Platforms"]
    platform = TARGET if TARGET in native else native[0]
    needs_context = ("Driver", "docker") in found
    return Builder(name, platform.partition("/")[2], is_engine=False, needs_context=needs_context)


def _fields(name: str) -> list[tuple[str, str]]:
    """The driver, the errors and the platforms of a builder's nodes; raises ``WorldError``.

    Our own call: python-on-whales inspects a builder by listing all of them, which waits for each,
    and leaves out the errors of their nodes.
    """
    command = [docker.executable(), "buildx", "inspect", "--bootstrap", f"--builder={name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: list[tuple[str, str]] = FIELD.findall(done.stdout)
    if done.returncode != 0 or not any(key == "Platforms" for key, _ in found):
        errors = [value for key, value in found if key == "Error"] or done.stderr.splitlines()[-1:]
        why = "; ".join(errors).removeprefix("ERROR: ")
        raise WorldError(f"the builder {name} does not answer", why, HINT)
    return found


def require_builder(builder: Builder) -> None:
    """Raise ``WorldError`` where the engine or the builder does not answer now."""
    docker.ask_engine()
    if not builder.is_engine:
        _inspect(builder.name)


def full_disk(builder: Builder, why: str, *others: Path) -> SpaceError:
    """The error of a build that met a full disk: the engine's, or that of ``others``."""
    if not builder.is_engine:
        what = f"a disk of the builder {builder.name}, or of this machine, is full"
        hint = f"`docker buildx prune --builder {builder.name}` removes the builder's cache"
        return SpaceError(what, why, f"{hint}; then run the same command again")
    try:
        return files.full_disk(why, docker.engine().root, *others)
    except WorldError:  # a full disk may end an engine
        return SpaceError("Docker's disk is full", why, files.FREE_SPACE_HINT)


def build(builder: Builder, arguments: Sequence[str], on_line: Callable[[str], None]) -> int:
    """Run ``docker buildx build`` with plain progress; pass each line on; return the exit status.

    Our own call: ``arguments`` have options that python-on-whales lacks, such as annotations.  On
    Ctrl-C the client is terminated first, so that BuildKit stops its work too.
    """
    command = [docker.executable()]
    if builder.needs_context and not builder.is_engine:
        command.append(f"--context={builder.name}")
    command += ["buildx", "build", f"--builder={builder.name}", "--progress=plain", *arguments]
    environment = os.environ | {"BUILDKIT_COLORS": "", "NO_COLOR": "1"}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        try:
            for line in output_of(process):
                on_line(line.rstrip("\n"))
        except BaseException:
            _stop(process)
            raise
        return process.wait()


def fields(*found: str) -> str:
    """Fields ("type=tar", "dest=/a,b.tar") as one value of an option: a line of CSV.

    https://docs.docker.com/reference/cli/docker/buildx/build/#output
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(found)
    return line.getvalue()


def print_bake(file: Path, groups: list[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """The targets and groups of a bake file, as ``docker buildx bake --print`` resolves them.

    ``variables`` are those of the file.  Raises ``BuildError`` where buildx refuses the file.
    https://docs.docker.com/reference/cli/docker/buildx/bake/#print
    """
    from python_on_whales.exceptions import DockerException

    try:
        found: Any = docker.client().buildx.bake(
            groups, docker.context(), file, print=True, variables=dict(variables)
        )
    except DockerException as error:
        why = docker.reason(error)
        raise BuildError("buildx does not accept the bake file", why) from error
    return dict(found)


def _stop(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
