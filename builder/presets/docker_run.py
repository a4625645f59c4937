"""``docker run``: the command line that starts a service."""

from __future__ import annotations

import csv
import shlex
from io import StringIO

from builder.presets.command import container_options
from builder.presets.exports import reasons
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
    single = ["--pull=never"] if service.local else []
    single += [f"--restart={service.restart}"] if service.restart else []
    single += _gpus(service)
    single += [f"--publish={HOST}:{service.published}:{service.port}"]
    single += [f"--mount={_bind(mount)}" for mount in service.mounts]
    if service.cache:
        single += [f"--mount=type=volume,source={service.name}-cache,target={service.cache}"]
    single += container_options(service.container)
    single += [f"--env={each.name}={each.value}" for each in service.environment]
    return [
        ["run", "--detach", "--name", service.name],
        ["--init", f"--stop-timeout={STOP}"],
        ["--cap-drop=ALL", "--security-opt=no-new-privileges"],
        *([["--read-only", "--tmpfs=/tmp"]] if service.read_only else []),
        *([word] for word in single),
        [service.image],
        *(list(option.words) for option in service.arguments),
    ]


def _bind(mount: Mount) -> str:
    """The value of ``--mount``, a CSV line.

    Unlike ``--volume`` it takes a path with a colon, and refuses one that does not exist, where
    ``--volume`` makes a directory that belongs to root (docs.docker.com, "Bind mounts").
    """
    line = StringIO()
    fields = ("type=bind", f"source={mount.source}", f"target={mount.target}", "readonly")
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _gpus(service: Service) -> list[str]:
    """The options for the GPUs: ``--gpus`` takes a CSV line, so several numbers are quoted."""
    numbers = service.devices
    if service.cdi:
        return [f"--device=nvidia.com/gpu={each}" for each in numbers or range(service.cards)]
    if len(numbers) > 1:
        return [f'--gpus="device={",".join(map(str, numbers))}"']
    if numbers:
        return [f"--gpus=device={numbers[0]}"]
    return [f"--gpus={service.cards}"] if service.cards else []
