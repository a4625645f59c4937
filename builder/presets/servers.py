"""Servers in the engine: started and followed until they are healthy, listed, stopped, replaced.

All that is known of a server stands in its container: what the user asked for, and by which recipe
and preset it was started, are labels.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from builder.checks.server import NotServingError, Server, ServerClient, UnansweredError
from builder.core.errors import BusyError, UntriedError, UsageError, WorldError, suggestion
from builder.core.log import Log
from builder.core.parallel import lines_of
from builder.docker import containers
from builder.docker import engine as docker
from builder.docker.containers import Container
from builder.engines.layout import LABEL_KEY, LABEL_RECIPE_KEY, VERSION
from builder.engines.servers import ApiFlavor
from builder.presets import exports
from builder.presets.images import Launch, LaunchRequest
from builder.presets.service import (
    HOST,
    KEY,
    LONGEST_NAME,
    Files,
    Service,
    container_name,
    in_url,
    service,
)

LABEL_RUN = "builder.run"
"""The identity of a server: sha256 over all that decides how it is started, but its port."""
LABEL_START = "builder.start"  # the process that started it, by a name that no other has
LABEL_NAME = "builder.preset"  # the name of its preset or recipe
LABEL_REQUEST = "builder.request"  # what the user asked for: a ``LaunchRequest`` as JSON
LABEL_CATALOG = "builder.catalog"  # the path of the checkout that started it
LABEL_SETTINGS = "builder.settings"  # sha256 over what preset and recipe say of its start
REQUEST = TypeAdapter(LaunchRequest)
ENDED = {"exited", "dead"}
GUARD_TIMEOUT = 10.0  # seconds
HINTS = {
    containers.NO_GPU_DRIVER: containers.TOOLKIT,
    "port is already allocated": "choose another one: --port N",  # moby, portallocator
    "address already in use": "choose another one: --port N",
    "is already in use by container": "another `builder run` started it at the same time",
}  # the next step, by a part of Docker's message


def _label(name: str) -> property:
    """A label of a container; empty where it has none."""
    return property(lambda found: found.labels.get(name, ""))


@dataclass(frozen=True, slots=True)
class Found:
    """A container of the engine: a server, or another one with the name of a server."""

    container: str
    name: str
    status: str
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    listen: str = HOST
    port: int | None = None
    health: str = ""  # by its health check; empty: it has none
    exit_code: int = 0
    since: str = ""  # when it started, or ended (RFC 3339)
    key_copy: str = ""  # the path of the file with its API key; empty: it asks for none

    run = _label(LABEL_RUN)  # the identity of the run that started it; empty where builder did not
    checkout = _label(LABEL_CATALOG)  # the path of the checkout that started it
    version = _label(VERSION)  # of its image
    key = _label(LABEL_KEY)  # the build key of its image

    @property
    def title(self) -> str:
        """The name of its preset or recipe."""
        return self.labels.get(LABEL_NAME, self.name)

    @property
    def recipe_key(self) -> str:
        """The key that the keys of its recipe are compared with."""
        return self.labels.get(LABEL_RECIPE_KEY, self.key)

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.status == "running"

    @property
    def stopped(self) -> bool:
        """Whether Docker does not start it by itself."""
        return self.status in {*ENDED, "created"}

    @property
    def removable(self) -> bool:
        """Whether it is of an earlier run that has ended."""
        return self.status in ENDED and bool(self.run)

    @property
    def state(self) -> str:
        """Its state for people: ``healthy``, ``exited (78)``."""
        if self.running:
            return self.health or self.status
        return f"{self.status} ({self.exit_code})"

    @property
    def address(self) -> str:
        """The address and port that it is published on."""
        return f"{in_url(self.listen)}:{self.port}" if self.port else ""

    @property
    def request(self) -> LaunchRequest | None:
        """What the user asked for; None where a version of builder started it that kept no note."""
        try:
            return REQUEST.validate_json(self.labels.get(LABEL_REQUEST, ""))
        except ValidationError:
            return None

    @property
    def secret(self) -> str:
        """The API key that its clients send; empty where it asks for none, or not readable."""
        with suppress(OSError, ValueError):
            text = Path(self.key_copy).read_text("ascii").strip() if self.key_copy else ""
            return text.removeprefix("api-key: ").strip('"')
        return ""

    @property
    def stop(self) -> str:
        """The next step of a person who wants its name or its port."""
        how = f"`builder stop {self.name}`" if self.run else f"docker rm --force {self.name}"
        return f"stop it first: {how}"


def existing(name: str) -> Found | None:
    """The container of that name; None where there is none."""
    return next(iter(_inspected(name)), None)


def all_servers() -> list[Found]:
    """The servers that any checkout started in this engine, by name."""
    listed = docker.call("ps", "--all", "--quiet", "--no-trunc", f"--filter=label={LABEL_RUN}")
    if listed.returncode != 0:
        docker.ask_engine()
    found = listed.stdout.split()
    return sorted(_inspected(*found), key=lambda each: each.name) if found else []


def _inspected(*names: str) -> list[Found]:
    done = docker.call("container", "inspect", "--format={{json .}}", *names)
    return [_found(json.loads(line)) for line in done.stdout.split("\n") if line]


def _found(each: Mapping[str, Any]) -> Found:
    state, bindings = each["State"], (each["HostConfig"].get("PortBindings") or {}).values()
    ports = [one for binding in bindings for one in binding or () if one["HostPort"]]
    published = ports[0] if ports else {}
    return Found(
        container=each["Id"],
        name=each["Name"].removeprefix("/"),
        status=state["Status"],
        image=each["Config"]["Image"],
        labels=each["Config"].get("Labels") or {},
        listen=published.get("HostIp") or HOST,
        port=int(published["HostPort"]) if published else None,
        health=(state.get("Health") or {}).get("Status", ""),
        exit_code=state["ExitCode"],
        since=state["StartedAt" if state["Running"] else "FinishedAt"],
        key_copy=next(
            (one["Source"] for one in each["Mounts"] if one["Destination"].startswith(KEY)), ""
        ),
    )


def named(name: str, servers: Sequence[Found], root: Path) -> Found:
    """The server of that name: its container's, its preset's, or the beginning of one of them.

    Servers of another checkout than ``root`` go by their container's name alone.
    """
    own = [each for each in servers if name and each.checkout == str(root)]
    for match in (str.__eq__, str.startswith):
        found = [each for each in own if match(each.name, name) or match(each.title, name)]
        found = found or [each for each in servers if each.name == name]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(each.name for each in found)
            raise UsageError(f"{name} is the name of several servers", hint=f"name one: {names}")
    near = suggestion(name, [*(each.title for each in own), *(each.name for each in servers)])
    raise UsageError(f"no server is named {name}{near}", hint="`builder ps` lists them")


# Started, followed until it is healthy, removed where it fails.


def identity(service: Service) -> str:
    """sha256 (hex) over all that decides how a service is started, apart from its port."""
    words = exports.words(replace(service, published=0))
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def settings_of(job: Launch) -> str:
    """sha256 (hex) over what a preset and its recipe say of a start, whatever image is here."""
    own = job.run.preset.files if job.run.preset else {}
    places = {place: f"/{place}" for place in (*own, *job.wanted.given)}
    made = service(job.run, "", Files(places))
    variables = [(each.name, each.value) for each in made.environment]
    parts = [made.words, variables, made.container.model_dump(mode="json")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def labels_of(job: Launch) -> dict[str, str]:
    """The labels of a container that say what its user asked for."""
    given = {place: file.expanduser().absolute() for place, file in job.wanted.given.items()}
    return {
        LABEL_NAME: job.run.name,
        LABEL_REQUEST: REQUEST.dump_json(replace(job.wanted, given=given, old=False)).decode(),
        LABEL_CATALOG: str(job.catalog.root.resolve()),
        LABEL_SETTINGS: settings_of(job),
    }


def name_of(job: Launch) -> str:
    """The name of a run's container: with a suffix where another checkout has that name."""
    root = str(job.catalog.root.resolve())
    plain = container_name(job.run.name)
    suffix = f"-{hashlib.sha256(root.encode()).hexdigest()[:4]}"
    own = f"{plain[: LONGEST_NAME - len(suffix)]}{suffix}"
    if existing(own) is not None:
        return own
    there = existing(plain)
    return own if there and there.labels.get(LABEL_CATALOG, root) != root else plain


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM in the body, which cleans up; its programs ignore them, too.

    Only the main thread can: elsewhere it does nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = [(each, signal.signal(each, signal.SIG_IGN)) for each in signals]
    try:
        yield
    finally:
        for each, handler in before:
            signal.signal(each, handler)


def start_service(
    service: Service,
    flavor: ApiFlavor,
    seconds: float,
    log: Log,
    hint: str = "",
    *,
    labels: Mapping[str, str] | None = None,
    key: str = "",
) -> float:
    """Start a service, and show its log until its health page answers; the seconds that it took.

    It then runs on.  ``key``: the API key, which is not shown.  The restart policy is set when the
    server is healthy: a server that cannot start does not try again.
    """
    name, token = service.name, uuid4().hex
    found = existing(name)
    if found is not None and not found.removable:
        raise BusyError(f"there is a container {name} already", hint=found.stop)
    if found is not None:
        containers.remove(found.container)  # not by its name, which another process may take
    try:
        _run(service, {**(labels or {}), LABEL_START: token})
        hint = "; ".join(filter(None, ("the container is removed", hint)))
        took = wait_until_healthy(service, flavor, seconds, log, hint, key=key)
        if service.key_file:
            _require_guarded(service, flavor)
        if service.restart:
            what = f"Docker does not take --restart {service.restart}"
            _require(what, "update", f"--restart={service.restart}", name)
    except BaseException:  # also an interrupt
        with _uninterrupted():
            found = existing(name)
            if found is not None and found.labels.get(LABEL_START) == token:
                containers.remove(found.container)
        raise
    return took


def _run(service: Service, labels: Mapping[str, str]) -> None:
    run, *words = exports.words(replace(service, restart=None))
    labels = {LABEL_RUN: identity(service), **labels}
    done = docker.call(run, *(f"--label={key}={value}" for key, value in labels.items()), *words)
    if done.returncode != 0:
        known = (hint for text, hint in HINTS.items() if text in done.stderr)
        why = containers.reason_of(done.stderr)
        raise UntriedError("Docker cannot start the container", why, next(known, ""))


def _require_guarded(service: Service, flavor: ApiFlavor) -> None:
    try:
        status = ServerClient(service.url).status(flavor.chat, GUARD_TIMEOUT)
    except UnansweredError as error:
        raise UntriedError(
            f"whether {service.name} asks for its key is not known", str(error)
        ) from error
    if status not in {401, 403}:
        why = f"{flavor.chat} answers {status}"
        raise UntriedError(f"{service.name} does not ask for its key", why, "it is removed")


def wait_until_healthy(
    service: Service,
    flavor: ApiFlavor,
    seconds: float,
    log: Log,
    hint: str = "",
    *,
    lines: Literal["all", "0"] = "all",
    key: str = "",
) -> float:
    """Show the log of a service's container until its health page answers; the seconds it took.

    ``lines``: of the log so far.
    """
    container = Container(service.name)
    server = Server(container, ServerClient(service.url), replace(flavor, health=service.health))
    with _followed(service.name, lambda text: log(hidden(text, key)), lines):
        try:
            return server.wait(seconds)
        except NotServingError as error:
            what, why = f"{service.name} does not serve", hidden(str(error), key)
            raise UntriedError(what, why, hint) from error


def hidden(text: str, key: str) -> str:
    """A line of a log without the API key: vLLM 0.20 and SGLang write it there."""
    return text.replace(key, "***") if key else text


@contextmanager
def _followed(name: str, log: Log, lines: str) -> Iterator[None]:
    follow = ("logs", "--follow", f"--tail={lines}", name)
    with (
        docker.stream(*follow, stderr=subprocess.STDOUT) as process,
        ThreadPoolExecutor(1) as reader,
    ):
        shown = reader.submit(_pass_on, lines_of(process), log)
        try:
            yield
        finally:
            process.terminate()
    if lines == "all":  # a server can answer before the client has its first line
        with docker.stream("logs", name, stderr=subprocess.STDOUT) as process:
            _pass_on(islice(lines_of(process), shown.result(), None), log)


def _pass_on(lines: Iterable[str], log: Log) -> int:
    passed = 0
    for line in lines:
        log(f"  {line.rstrip()}")
        passed += 1
    return passed


# Looked at, stopped, removed, replaced.


def log_lines(found: Found, tail: str, *, follow: bool) -> Iterator[str]:
    """The lines of a server's log, without its API key; ``tail``: their number, or ``all``."""
    words = ["logs", f"--tail={tail}", *(["--follow"] if follow else []), found.container]
    key = found.secret
    with docker.stream(*words, stderr=subprocess.STDOUT) as process:
        for each in lines_of(process):
            yield hidden(each.rstrip(), key)


def stop(found: Found) -> None:
    """Stop a server as its container says: SIGTERM, and SIGKILL after some seconds."""
    _require(f"Docker cannot stop {found.name}", "stop", found.container)


def _require(what: str, *words: str) -> None:
    done = docker.call(*words)
    if done.returncode != 0:
        raise WorldError(what, done.stderr.strip())


def has_page(service: Service) -> bool:
    """Whether a server that runs has a web page."""
    try:
        kind, _ = ServerClient(service.url).page("/", GUARD_TIMEOUT)
    except UnansweredError:
        return False
    return kind.startswith("text/html")


@contextmanager
def set_aside(found: Found | None) -> Iterator[None]:
    """Stop a server, under another name, for the one that is started in the body.

    It is removed afterwards; where the body fails, it is started again.
    """
    if found is None:
        yield
        return
    aside = f"{found.name}-replaced"
    containers.remove(aside)  # of an update that was killed
    try:
        _require(f"Docker cannot rename {found.name}", "rename", found.container, aside)
        stop(found)
        yield
    except BaseException:
        with _uninterrupted():
            docker.call("rename", found.container, found.name)
            docker.call("start", found.container)
        raise
    containers.remove(found.container)


def remove(found: Found) -> None:
    """Stop a server and remove its container.  Raises ``WorldError`` where Docker does not."""
    stop(found)
    containers.remove(found.container)
    if existing(found.container) is not None:
        how = f"docker rm --force {found.name}"
        raise WorldError(f"Docker does not remove {found.name}", hint=how)
