"""Containers: programs and servers of an image, run sealed off, and always taken away again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from builder.errors import UntriedError
from builder.tools.docker.engine import executable

OWNER = "builder.owner"
SEALED = (
    *("--network=none", "--read-only", "--tmpfs=/tmp", "--pids-limit=4096"),
    *("--cap-drop=ALL", "--security-opt=no-new-privileges"),
)
LOGS = ("--log-driver=json-file", "--log-opt=max-size=4m", "--log-opt=max-file=2")
MOST_OUTPUT = 1 << 20  # bytes that are kept of the beginning of an output, and of its end
BLOCK = 1 << 16
LOG_TAIL = 64 << 10  # bytes of a log that are looked at
PATIENCE = 60.0  # seconds for the engine to answer


class TimedOutError(UntriedError):
    """A container was stopped because it did not end."""


class NotRunnableError(UntriedError):
    """The image has no such program, or not one that can be run."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a container printed, on both streams, and how it ended."""

    status: int
    output: str


@dataclass(frozen=True, slots=True)
class State:
    """Whether a container runs, and how it ended."""

    running: bool
    status: int
    out_of_memory: bool


@dataclass(frozen=True, slots=True)
class Start:
    """How a server's container is started, beside what is sealed of all."""

    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    """Files of the host by their place in the container; read-only."""
    memory: float | None = None
    """GiB."""
    locks_memory: bool = False
    """Without a limit of what it may keep out of the swap; not every engine allows it."""
    driver_stub: Path | None = None
    gpus: str | None = None
    """As for ``docker run --gpus``."""


def owner() -> str:
    """This process, by host, number and start: what it leaves behind can be told from others'."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_of(os.getpid())}"


def _start_of(process: int) -> str:
    """When a process began, in ticks of the kernel (proc(5), stat, field 22); empty if gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def reap() -> None:
    """Take away containers of runs on this host that were killed before they could."""
    ask = [executable(), "ps", "--all", f"--filter=label={OWNER}"]
    ask += ["--format", '{{.ID}} {{.Label "' + OWNER + '"}}']
    done = subprocess.run(ask, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        container, _, of = line.partition(" ")
        host, _, rest = of.partition(":")
        process, _, start = rest.partition(":")
        if host == socket.gethostname() and process.isdigit() and _start_of(int(process)) != start:
            _remove(container)


def _remove(name: str) -> None:
    subprocess.run(
        [executable(), "rm", "--force", "--volumes", name], capture_output=True, check=False
    )


def _stub_options(driver_stub: Path | None) -> list[str]:
    if driver_stub is None:
        return []
    place = "/run/driver"
    return [f"--volume={driver_stub}:{place}/libcuda.so.1:ro", f"--env=LD_LIBRARY_PATH={place}"]


def run(
    reference: str,
    command: Sequence[str],
    *,
    entrypoint: str,
    timeout: float,
    driver_stub: Path | None = None,
    extra: Sequence[str] = (),
) -> Finished:
    """Run a program of an image, sealed: no network, read-only root, no privileges.

    ``driver_stub`` stands in for the driver's libcuda.so.1; ``extra`` are more options of
    ``docker run``.  Raises ``UntriedError`` when the container cannot be started,
    ``TimedOutError`` when it does not end within ``timeout`` seconds.
    """
    name = f"builder-{uuid4().hex[:12]}"
    options = ["--rm", "--name", name, f"--label={OWNER}={owner()}", *SEALED, *LOGS]
    options += [f"--entrypoint={entrypoint}", *_stub_options(driver_stub), *extra]
    call = [executable(), "run", *options, "--", reference, *command]
    try:
        done = _finished(call, timeout)
    except subprocess.TimeoutExpired as error:
        raise TimedOutError(
            f"{' '.join([entrypoint, *command])} did not end",
            f"stopped after {timeout:.0f} s",
        ) from error
    finally:
        _remove(name)
    if done.status == 125:  # docker run(1), "Exit status": the engine's own error
        raise UntriedError("the engine could not start a container", done.output.strip())
    if done.status != 0 and "exec format error" in done.output:
        raise UntriedError("the engine cannot run programs of the image's platform", done.output)
    return done


def _finished(call: Sequence[str], timeout: float) -> Finished:
    """Run a command; of an endless output its beginning and its end are kept.

    Raises ``subprocess.TimeoutExpired``.
    """
    late = threading.Event()
    with subprocess.Popen(
        call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(timeout, end)
        timer.start()
        try:
            head, tail = process.stdout.read(MOST_OUTPUT), b""
            while block := process.stdout.read(BLOCK):
                tail = (tail + block)[-MOST_OUTPUT:]
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
    if late.is_set():
        raise subprocess.TimeoutExpired(call, timeout)
    return Finished(process.returncode, (head + tail).decode(errors="replace"))


def copy_out(reference: str, path: str, target: Path) -> None:
    """Copy a file of an image, behind links, to ``target``; raises ``UntriedError``."""
    name = f"builder-{uuid4().hex[:12]}"
    steps = (
        ["create", f"--name={name}", f"--label={OWNER}={owner()}", reference, "true"],
        ["cp", "-L", f"{name}:{path}", str(target)],
    )
    try:
        for step in steps:
            done = _finished([executable(), *step], PATIENCE)
            if done.status != 0:
                raise UntriedError(f"cannot read {path} of {reference}", done.output.strip())
    finally:
        _remove(name)


class Container:
    """A container that runs in the background."""

    def __init__(self, name: str) -> None:
        self.name = name

    def state(self) -> State:
        """Whether it runs; raises ``UntriedError`` when it is gone."""
        call = [executable(), "inspect", "--format={{json .State}}", self.name]
        done = _finished(call, PATIENCE)
        if done.status != 0:
            raise UntriedError("a container went away", done.output.strip())
        state = json.loads(done.output)
        return State(bool(state["Running"]), int(state["ExitCode"]), bool(state["OOMKilled"]))

    def log(self) -> str:
        """The end of what it printed."""
        call = [executable(), "logs", "--tail=400", self.name]
        with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            kept = b""
            while block := process.stdout.read(LOG_TAIL):
                kept = (kept + block)[-LOG_TAIL:]
        return kept.decode(errors="replace")

    def health_test(self) -> list[str]:
        """The command of the image's HEALTHCHECK; empty where it has none."""
        call = [executable(), "inspect", "--format={{json .Config.Healthcheck}}", self.name]
        found = json.loads(_finished(call, PATIENCE).output or "null") or {}
        kind, *command = found.get("Test") or ["NONE"]
        return {"CMD": command, "CMD-SHELL": ["/bin/sh", "-c", *command]}.get(kind, [])

    def execute(self, command: Sequence[str], timeout: float) -> Finished:
        """Run another program in it; raises ``TimedOutError``."""
        try:
            return _finished([executable(), "exec", self.name, *command], timeout)
        except subprocess.TimeoutExpired as error:
            what = " ".join(command)
            raise TimedOutError(f"{what} did not end", f"waited {timeout:.0f} s") from error

    def stop(self, seconds: int) -> tuple[State, float]:
        """SIGTERM, and SIGKILL after ``seconds``; how it ended, and the seconds that it took."""
        started = time.monotonic()
        _finished([executable(), "stop", f"--time={seconds}", self.name], PATIENCE + seconds)
        return self.state(), time.monotonic() - started


@contextmanager
def started(reference: str, start: Start) -> Iterator[Container]:
    """A container of the image's own entrypoint, sealed: nothing reaches it but ``relay``.

    Raises ``UntriedError`` when the engine cannot start it, ``NotRunnableError`` when that is the
    image's fault.
    """
    name = f"builder-{uuid4().hex[:12]}"
    options = ["--detach", "--name", name, f"--label={OWNER}={owner()}", *SEALED, *LOGS]
    options += [f"--volume={file}:{place}:ro" for place, file in start.volumes.items()]
    options += [f"--env={variable}={value}" for variable, value in start.env.items()]
    options += _stub_options(start.driver_stub)
    if start.memory is not None:
        options += [f"--memory={int(start.memory * 1024)}m"]
    if start.locks_memory:
        options.append("--ulimit=memlock=-1")
    if start.gpus is not None:
        options += [f"--gpus={start.gpus}"]
    try:
        call = [executable(), "run", *options, "--", reference, *start.arguments]
        done = _finished(call, PATIENCE)
        if done.status in {126, 127}:  # docker run(1), "Exit status": the program's fault
            raise NotRunnableError("its program cannot be run", done.output.strip())
        if done.status != 0:
            raise UntriedError("the engine could not start a container", done.output.strip())
        yield Container(name)
    except subprocess.TimeoutExpired as error:
        raise UntriedError("the engine could not start a container in time") from error
    finally:
        _remove(name)
