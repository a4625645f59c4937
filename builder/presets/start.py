"""A service started in the engine: followed until it is healthy, removed where it fails."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal
from uuid import uuid4

from builder.checks.client import ServerClient
from builder.checks.server import NotServingError, Server
from builder.core.errors import BusyError, UntriedError
from builder.core.log import Log
from builder.core.pipes import lines_of
from builder.docker import client, containers
from builder.docker.containers import Container
from builder.engines.api_flavor import ApiFlavor
from builder.engines.layout import LABEL_KEY
from builder.presets import docker_run
from builder.presets.service import Service

LABEL_RUN = "builder.run"
"""The label of a container: the identity of its run."""
LABEL_START = "builder.start"
"""The label of a container: the process that started it, by a name that no other has."""
ENDED = {"exited", "dead"}
HINTS = {
    containers.NO_GPU_DRIVER: containers.TOOLKIT,
    "port is already allocated": "choose another one: --port N",  # moby, portallocator
    "address already in use": "choose another one: --port N",
    "is already in use by container": "another `builder run` started it at the same time",
}
"""The next step, by a part of Docker's message."""


@dataclass(frozen=True, slots=True)
class Found:
    """A container of that name."""

    container: str
    status: str
    run: str
    """The identity of the run that started it; empty where builder did not start it."""
    port: int | None
    started_by: str
    image: str = ""
    key: str = ""
    """The build key of its image, by its label."""

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.status == "running"

    @property
    def removable(self) -> bool:
        """Whether it is of an earlier run that has ended."""
        return self.status in ENDED and bool(self.run)


def existing(name: str) -> Found | None:
    """The container of that name; None where there is none."""
    done = client.call("container", "inspect", "--format={{json .}}", name)
    if done.returncode != 0:
        return None
    found = json.loads(done.stdout)
    labels = found["Config"].get("Labels") or {}
    bindings = (found["HostConfig"].get("PortBindings") or {}).values()
    ports = [each["HostPort"] for binding in bindings for each in binding or ()]
    return Found(
        container=found["Id"],
        status=found["State"]["Status"],
        run=labels.get(LABEL_RUN, ""),
        port=next((int(each) for each in ports if each), None),
        started_by=labels.get(LABEL_START, ""),
        image=found["Config"]["Image"],
        key=labels.get(LABEL_KEY, ""),
    )


def identity(service: Service) -> str:
    """sha256 (hex) over all that decides how a service is started, apart from its port."""
    words = docker_run.words(replace(service, restart=None, published=0))
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def start(service: Service, flavor: ApiFlavor, seconds: float, log: Log, hint: str = "") -> float:
    """Start a service, and show its log until its health page answers; the seconds that it took.

    It then runs on.  Raises ``UntriedError`` where the engine cannot start it, or it ends or is not
    healthy within ``seconds``, with ``hint`` as the next step; ``BusyError`` where a container has
    its name.  The container is removed then, and on an interrupt; the container of another process
    never is.
    """
    name, token = service.name, uuid4().hex
    found = existing(name)
    if found is not None and not found.removable:
        stop = f"stop it: docker rm --force {name}"
        raise BusyError(f"there is a container {name} already", hint=stop)
    if found is not None:
        containers.remove(found.container)  # not by its name, which another process may take
    try:
        _run(service, token)
        hint = "; ".join(filter(None, ("the container is removed", hint)))
        return wait(service, flavor, seconds, log, hint)
    except BaseException:  # also an interrupt
        found = existing(name)
        if found is not None and found.started_by == token:
            containers.remove(found.container)
        raise


def _run(service: Service, token: str) -> None:
    run, *words = docker_run.words(replace(service, restart=None))
    labels = (f"--label={LABEL_RUN}={identity(service)}", f"--label={LABEL_START}={token}")
    done = client.call(run, *labels, *words)
    if done.returncode != 0:
        known = (hint for text, hint in HINTS.items() if text in done.stderr)
        why = containers.reason_of(done.stderr)
        raise UntriedError("Docker cannot start the container", why, next(known, ""))


def wait(
    service: Service,
    flavor: ApiFlavor,
    seconds: float,
    log: Log,
    hint: str = "",
    *,
    lines: Literal["all", "0"] = "all",
) -> float:
    """Show the log of a service's container until its health page answers; the seconds it took.

    ``lines``: of the log so far.  Raises ``UntriedError``, with ``hint`` as the next step, where
    it ends or is not healthy within ``seconds``.
    """
    container = Container(service.name)
    server = Server(container, ServerClient(service.url), replace(flavor, health=service.health))
    with _followed(service.name, log, lines):
        try:
            return server.wait(seconds)
        except NotServingError as error:
            raise UntriedError(f"{service.name} does not serve", str(error), hint) from error


@contextmanager
def _followed(name: str, log: Log, lines: str) -> Iterator[None]:
    follow = ("logs", "--follow", f"--tail={lines}", name)
    with (
        client.stream(*follow, stderr=subprocess.STDOUT) as process,
        ThreadPoolExecutor(1) as reader,
    ):
        shown = reader.submit(_pass_on, lines_of(process), log)
        try:
            yield
        finally:
            process.terminate()
    if lines == "all":  # a server can answer before the client has its first line
        with client.stream("logs", name, stderr=subprocess.STDOUT) as process:
            _pass_on(islice(lines_of(process), shown.result(), None), log)


def _pass_on(lines: Iterable[str], log: Log) -> int:
    """How many lines there were."""
    passed = 0
    for line in lines:
        log(f"  {line.rstrip()}")
        passed += 1
    return passed
