"""buildx: who compiles, and what it is told.

A builder is a BuildKit: the engine's own, or one in a container, on another machine, in a cluster
(https://docs.docker.com/build/builders/drivers/).
"""

from __future__ import annotations

import csv
import io
import json
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
    """It is the engine itself: it has the engine's images, and the engine has what it makes."""
    needs_context: bool = True
    """It is the engine of the Docker context of its name; buildx takes it in that context only."""


@cache
def builder(name: str = "") -> Builder:
    """The builder of that name; without one, the engine's own, whatever `docker buildx use` says.

    The engine's own bears the name of Docker's context.  Another one is started where it does not
    run.  Raises ``WorldError`` where there is none of that name, or it does not answer.
    """
    own = docker.context()
    if name in {"", own}:
        return Builder(own, docker.engine().architecture)
    return _inspected(name)


def _inspected(name: str) -> Builder:
    command = [docker.executable(), "buildx", "inspect", "--bootstrap", f"--builder={name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = FIELD.findall(done.stdout)
    # The first platform of a node is its own; after it come those that it emulates.
    native = [value.split(",")[0].strip(" *") for key, value in found if key == "Platforms"]
    if done.returncode != 0 or not native:
        said = [value for key, value in found if key == "Error"] or done.stderr.splitlines()[-1:]
        why = "; ".join(said).removeprefix("ERROR: ")
        raise WorldError(f"the builder {name} does not answer", why, HINT)
    platform = TARGET if TARGET in native else native[0]
    needs_context = ("Driver", "docker") in found
    return Builder(name, platform.partition("/")[2], is_engine=False, needs_context=needs_context)


def require_builder(builder: Builder) -> None:
    """Raise ``WorldError`` where the engine or the builder does not answer, or no longer."""
    docker.ask_engine()
    if not builder.is_engine:
        _inspected(builder.name)


def full_disk(builder: Builder, why: str, *others: Path) -> SpaceError:
    """The error of a build that found a disk full: the engine's, or that of ``others``."""
    if not builder.is_engine:
        what = f"a disk of the builder {builder.name}, or of this machine, is full"
        hint = f"`docker buildx prune --builder {builder.name}` drops what the builder keeps"
        return SpaceError(what, why, f"{hint}; then run the same command again")
    try:
        return files.full_disk(why, docker.engine().root, *others)
    except WorldError:  # a full disk may end an engine
        return SpaceError("the disk of the engine is full", why, files.FREE_SPACE_HINT)


def build(builder: Builder, arguments: Sequence[str], on_line: Callable[[str], None]) -> int:
    """Run ``docker buildx build`` with plain progress; give each line on; return the exit status.

    On Ctrl-C the client is told first, so that BuildKit stops its work too.
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
        assert process.stdout is not None
        try:
            for line in process.stdout:
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


def print_bake(file: Path, groups: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """What ``docker buildx bake`` reads in a file: its targets and groups, as it would build them.

    ``variables`` are those of the file.  Raises ``BuildError`` where it does not accept it.
    https://docs.docker.com/reference/cli/docker/buildx/bake/#print
    """
    command = [docker.executable(), "buildx", "bake", f"--builder={docker.context()}"]
    command += [f"--file={file}", "--print", *groups]
    environment = os.environ | variables
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise BuildError("buildx does not accept the bake file", done.stderr.strip())
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _stop(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
