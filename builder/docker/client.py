"""The docker client: python-on-whales, and beside it three functions that start the executable.

docs/development.md, Rules, says which does what.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from builder.core.errors import UntriedError, WorldError
from builder.core.parallel import output_of

if TYPE_CHECKING:
    from python_on_whales import DockerClient

INSTALL_HINT = (
    "on Debian or Ubuntu as root, ./farm installs it; elsewhere install Docker with buildx"
)
INFO_TIMEOUT = 20.0  # seconds
MOST_OUTPUT = 1 << 20  # bytes that are kept of the beginning of an output, and of its end
BLOCK = 1 << 16


class LateError(UntriedError):
    """The client was stopped because it did not end in time."""


@dataclass(frozen=True, slots=True)
class Finished:
    """An exit status and an output, both streams together."""

    status: int
    output: str


@cache
def executable() -> str:
    """The first ``docker`` on PATH whose buildx plugin works.

    A client without the plugin may come before a client with it.  Raises ``WorldError``.
    """
    found = []
    for folder in os.get_exec_path():
        path = shutil.which("docker", path=folder)
        if path and path not in found:
            found.append(path)
            if _has_buildx(path):
                return path
    if found:
        raise WorldError("docker has no buildx plugin", f"tried: {', '.join(found)}", INSTALL_HINT)
    raise WorldError("there is no docker on this machine", hint=INSTALL_HINT)


def _has_buildx(path: str) -> bool:
    """Whether a client has a buildx plugin that works.

    ``docker info`` names the plugins, and most commands need its answer for the engine too; the
    plugin itself is started only where it is not named.
    """
    plugins = (_info(path).get("ClientInfo") or {}).get("Plugins") or []
    if any(each.get("Name") == "buildx" and not each.get("Err") for each in plugins):
        return True
    try:
        return _run([path, "buildx", "version"], INFO_TIMEOUT).returncode == 0
    except (OSError, LateError):
        return False


def client_info() -> dict[str, Any]:
    """The JSON of ``docker info``, asked once: of the client, and of an engine that answers.

    Empty where the client gives no JSON within 20 seconds.
    """
    return _info(executable())


@cache
def _info(path: str) -> dict[str, Any]:
    command = [path, "system", "info", "--format", "{{json .}}"]
    try:
        found = json.loads(_run(command, INFO_TIMEOUT).stdout)
    except (OSError, LateError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@cache
def whales() -> DockerClient:
    """python-on-whales with the executable that has buildx.  Raises ``WorldError``."""
    from python_on_whales import DockerClient

    return DockerClient(client_call=[executable()])


def call(*arguments: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run docker to its end, whatever its exit status.

    Raises ``LateError`` where that takes more than ``timeout`` seconds.
    """
    return _run([executable(), *arguments], timeout)


def _run(command: list[str], timeout: float | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise _late(command, error.timeout) from error


def _late(command: list[str], timeout: float) -> LateError:
    what = f"docker {' '.join(command[1:3])} did not end"
    return LateError(what, f"stopped after {timeout:.0f} s")


def output(*arguments: str, timeout: float, most: int = MOST_OUTPUT) -> Finished:
    """Run docker to its end; keep ``most`` bytes of the output's beginning, and of its end.

    Raises ``LateError`` where that takes more than ``timeout`` seconds.
    """
    with stream(*arguments, stderr=subprocess.STDOUT, timeout=timeout) as process:
        printed = output_of(process)
        head, tail = printed.read(most), b""
        while block := printed.read(BLOCK):
            tail = (tail + block)[-most:]
        process.wait()
    return Finished(process.returncode, (head + tail).decode(errors="replace"))


@contextmanager
def stream(
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    bufsize: int = -1,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Docker with a pipe from its standard output; killed where it still runs after the body.

    Raises ``LateError`` where it ran for ``timeout`` seconds: then it is killed, which ends its
    output.
    """
    late = threading.Event()
    command = [executable(), *arguments]
    with subprocess.Popen(
        command, bufsize=bufsize, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, env=env
    ) as process:

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(timeout or 0, end)
        if timeout is not None:
            timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()
    if late.is_set():
        raise _late(command, timeout or 0)
