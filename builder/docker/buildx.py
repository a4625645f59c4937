"""buildx: builders and builds.

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
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from builder.core import files
from builder.core.errors import BuildError, FetchError, SpaceError, WorldError
from builder.core.parallel import ends_with_its_work, lines_of
from builder.core.platforms import Platforms, architecture
from builder.docker import engine as docker
from builder.docker.engine import LateError, call

TARGET = "linux/amd64"  # the platform of most images
FIELD = re.compile(r"(?m)^(Driver|Error|Platforms): *(.*)$")
LINES = 15  # of the output of a build that failed
HINT = "`docker buildx ls` lists the builders, `docker buildx create` makes one"


@dataclass(frozen=True, slots=True)
class Builder:
    """A BuildKit that buildx knows by ``name``."""

    name: str
    architecture: str
    """The machine's that compiles, as ``uname -m`` or Docker names it."""
    is_engine: bool = True
    """It is the engine itself: both have the same images."""
    needs_context: bool = True
    """It is the engine of the Docker context of its name; buildx accepts it only in that context.
    """


@cache
def builder(name: str = "") -> Builder:
    """The builder of that name; without a name the engine's own, whatever `docker buildx use`
    chose.

    The engine's own has the name of Docker's context.  Another one is started where it does not
    run.  Raises ``WorldError`` where there is none of that name, or it does not answer.
    """
    own = docker.context()
    if name in {"", own}:
        return Builder(own, docker.engine().architecture)
    return _inspect(name)


def platforms_of(name: str = "") -> list[str]:
    """The platforms whose programs a builder runs, its own first: "linux/amd64".

    Raises ``WorldError`` where it does not answer.
    """
    found = _fields(name or docker.context())
    listed = [value for key, value in found if key == "Platforms"]
    return list(dict.fromkeys(each.strip(" *") for each in ",".join(listed).split(",")))


def _inspect(name: str) -> Builder:
    found = _fields(name)
    # The first platform of a node is its own; emulated platforms follow.
    native = [value.split(",")[0].strip(" *") for key, value in found if key == "Platforms"]
    platform = TARGET if TARGET in native else native[0]
    needs_context = ("Driver", "docker") in found
    return Builder(name, platform.partition("/")[2], is_engine=False, needs_context=needs_context)


def _fields(name: str) -> list[tuple[str, str]]:
    """The driver, the errors and the platforms of a builder's nodes."""
    done = docker.call("buildx", "inspect", "--bootstrap", f"--builder={name}")
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
    """The error of a build that met a full disk: the engine's disk, or a disk of ``others``."""
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

    On Ctrl-C the client is terminated first, so that BuildKit stops its work too.
    """
    needs_context = builder.needs_context and not builder.is_engine
    command = [f"--context={builder.name}"] if needs_context else []
    command += ["buildx", "build", f"--builder={builder.name}", "--progress=plain", *arguments]
    environment = os.environ | {"BUILDKIT_COLORS": "", "NO_COLOR": "1"}
    with (
        docker.stream(*command, stderr=subprocess.STDOUT, env=environment) as process,
        ends_with_its_work(process),
    ):
        try:
            for line in lines_of(process):
                on_line(line.rstrip("\n"))
        except BaseException:
            _stop(process)
            raise
        return process.wait()


def build_files(context: Path, arguments: Mapping[str, str], made: Path) -> str:
    """Build the last stage of a context's Dockerfile, without network, and write its files to
    ``made``, which need not exist.

    The engine's own builder is used; ``arguments`` are the build arguments.  Returns the end of the
    output where a step failed, else an empty text.  Raises ``SpaceError`` where a disk is full.
    """
    lines: list[str] = []
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    options += ["--network=none", "--provenance=false"]
    options.append(f"--output={fields('type=local', f'dest={made}')}")
    if build(builder(), [*options, str(context)], lines.append) == 0:
        return ""
    output = "\n".join(lines[-LINES:])
    if files.mentions_full_disk(output):
        raise full_disk(builder(), f"{context.name} was being compiled", made.parent)
    return output


def fields(*found: str) -> str:
    """Fields ("type=tar", "dest=/a,b.tar") as one value of an option: a line of CSV.

    https://docs.docker.com/reference/cli/docker/buildx/build/#output
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(found)
    return line.getvalue()


def _stop(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):  # then it is killed
        process.wait(15)


# The way of a compile: on the engine's machine or another one, for its own architecture or not.

EMULATORS = (
    "register an emulator: `apt-get install qemu-user-static` on Debian or Ubuntu, which needs "
    "systemd; elsewhere "
    "`docker run --privileged --rm tonistiigi/binfmt --install all`"
)


def is_emulated(platforms: Platforms, builder: Builder) -> bool:
    """Whether the compiler itself runs under emulation."""
    return architecture(builder.architecture) not in {None, platforms.build}


def way_name(platforms: Platforms, builder: Builder) -> str:
    """ "native", "cross" or "emulated", or several: "remote cross"."""
    ways = ["cross"] if platforms.cross else []
    ways += ["emulated"] if is_emulated(platforms, builder) else []
    return " ".join([*([] if builder.is_engine else ["remote"]), *(ways or ["native"])])


def way_text(platforms: Platforms, builder: Builder) -> str:
    """For people: "cross: compiled on linux/arm64 for linux/amd64"."""
    parts = [f"compiled on linux/{platforms.build}"]
    if is_emulated(platforms, builder):
        parts.append(f"(emulated on {architecture(builder.architecture)})")
    parts += [f"for linux/{platforms.target}"] if platforms.cross else []
    parts += [] if builder.is_engine else [f"by the builder {builder.name}"]
    return f"{way_name(platforms, builder)}: {' '.join(parts)}"


def require_emulators(platforms: Platforms, builder: Builder) -> None:
    """Raise ``WorldError`` where the builder cannot run the programs of both platforms.

    Programs of the build platform compile.  Programs of the target install Debian's packages in the
    image, and run in its smoke test.
    """
    if not is_emulated(platforms, builder) and not platforms.cross:
        return
    runs = platforms_of(builder.name)
    for name in platforms.both:
        if f"linux/{name}" not in runs:
            why = f"it runs {', '.join(runs)}; the build is {way_text(platforms, builder)}"
            if name != platforms.build:
                why += "\nthe compile needs no emulation, but the packages of the image and its "
                why += "smoke test run programs of the image"
            raise WorldError(f"the builder runs no programs of linux/{name}", why, EMULATORS)


# Images of registries as ``docker buildx imagetools`` shows them: with Docker's own logins.


def registry_digest(reference: str, timeout: float) -> str:
    """The digest of a tag in its registry.

    Raises ``GoneError`` where the registry has no such image, ``RegistryError`` where it refuses
    this login, ``FetchError`` where it fails, or does not answer in time.
    """
    output = _inspect_image(reference, timeout)
    try:
        return str(json.loads(output)["digest"])
    except (ValueError, KeyError) as error:
        raise BuildError(f"buildx gave no digest for {reference}", output) from error


def config(reference: str, platform: str, timeout: float) -> dict[str, Any]:
    """The OCI image configuration of an image, for one platform ("linux/amd64").

    Raises like ``digest``.
    """
    images = json.loads(_inspect_image(reference, timeout, "{{json .Image}}"))
    # buildx gives a mapping by platform for an index, the image alone for a manifest.
    found = images if "rootfs" in images else images.get(platform)
    if found is None:
        raise FetchError(
            f"{reference} has no image for {platform}",
            f"it has: {', '.join(images)}",
            "use an image of that platform",
        )
    return dict(found)


def _inspect_image(reference: str, timeout: float, template: str = "{{json .Manifest}}") -> str:
    options = [f"--builder={docker.context()}", f"--format={template}"]
    try:
        done = call("buildx", "imagetools", "inspect", *options, reference, timeout=timeout)
    except LateError:
        raise docker.refusal(reference, f"no response within {timeout:.0f} s") from None
    if done.returncode != 0:
        raise docker.refusal(reference, done.stderr.strip().removeprefix("ERROR: "))
    return done.stdout
