"""``docker run``: the command line that starts a service."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Iterator
from io import StringIO

from builder.exports.text import reasons
from builder.presets.command import container_options
from builder.presets.service import HOST, STOP, Mount, Service


def words(service: Service) -> list[str]:
    """The arguments of ``docker``: ``run``, its options, the image, the engine's arguments."""
    return [word for each in lines(service) for word in each]


def line(service: Service) -> str:
    """The command for a shell, an option a line."""
    first, *others = lines(service)
    return " \\\n    ".join(shlex.join(each) for each in (["docker", *first], *others))


def document(service: Service) -> str:
    """A shell script: the reasons as comments, and the command.

    It first removes the container of an earlier start, whose name it takes.
    """
    comments = "".join(f"# {each}\n" for each in reasons(service))
    remove = f"docker rm --force {service.name}"
    stop = f"# Stop it: {remove}\n# A second start replaces the container of the first.\n"
    return f"#!/bin/sh\n{comments}{stop}{remove} >/dev/null 2>&1\nexec {line(service)}\n"


def lines(service: Service) -> list[list[str]]:
    """The words after ``docker``, an option a line."""
    return list(_options(service))


def _options(service: Service) -> Iterator[list[str]]:
    yield ["run", "--detach", "--name", service.name]
    yield ["--init", f"--stop-timeout={STOP}"]
    yield ["--cap-drop=ALL", "--security-opt=no-new-privileges"]
    if service.read_only:
        yield ["--read-only", "--tmpfs=/tmp"]
    if service.local:
        yield ["--pull=never"]
    if service.restart:
        yield [f"--restart={service.restart}"]
    yield from ([each] for each in _gpus(service))
    yield [f"--publish={HOST}:{service.published}:{service.port}"]
    for mount in service.mounts:
        yield [f"--mount={_bind(mount)}"]
    if service.cache:
        yield [f"--mount=type=volume,source={service.name}-cache,target={service.cache}"]
    yield from ([word] for word in container_options(service.container))
    for variable in service.environment:
        yield [f"--env={variable.name}={variable.value}"]
    yield [service.image]
    for option in service.arguments:
        yield list(option.words)


def _bind(mount: Mount) -> str:
    """The value of ``--mount``, a CSV line.

    Unlike ``--volume`` it takes a path with a colon, and refuses one that does not exist, where
    ``--volume`` makes a directory that belongs to root (docs.docker.com, "Bind mounts").
    """
    line = StringIO()
    fields = ("type=bind", f"source={mount.source}", f"target={mount.target}", "readonly")
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _gpus(service: Service) -> Iterator[str]:
    """The options for the GPUs: ``--gpus`` takes a CSV line, so several numbers are quoted."""
    if service.cdi:
        names = service.devices or range(service.cards)
        yield from (f"--device=nvidia.com/gpu={name}" for name in names)
    elif len(service.devices) > 1:
        yield f'--gpus="device={",".join(map(str, service.devices))}"'
    elif service.devices:
        yield f"--gpus=device={service.devices[0]}"
    elif service.cards:
        yield f"--gpus={service.cards}"
