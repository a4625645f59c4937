"""The command line under test; a plugin of pytest."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.environment import REPOSITORY, sealed_environment

Builder = Callable[..., "subprocess.CompletedProcess[str]"]

AT_IMPORT = (
    *("BUILDER_PROGRAM", "COLUMNS", "FORCE_COLOR", "LANG", "LC_ALL", "NO_COLOR", "PATH", "TERM"),
    *("PYTHONIOENCODING", "PYTHONPATH", "PYTHONUTF8", "TTY_COMPATIBLE"),
)
"""Variables that Python, builder or its libraries read before a command runs."""


@dataclass(frozen=True)
class ForkServer:
    """See support/forkserver.py."""

    requests: socket.socket
    environment: dict[str, str]

    def run(
        self,
        arguments: list[str],
        folder: Path = REPOSITORY,
        timeout: float = 900,
        environment: Mapping[str, str] = os.environ,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own, forked where an interpreter would be the same."""
        if any(environment.get(name) != self.environment.get(name) for name in AT_IMPORT):
            return _interpreted(arguments, folder, timeout, environment)
        request = {"arguments": arguments, "folder": str(folder), "environment": {**environment}}
        with ExitStack() as stack:
            none = stack.enter_context(Path(os.devnull).open("rb"))
            out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            here, there = socket.socketpair()
            stack.enter_context(here)
            with there:
                files = [each.fileno() for each in (none, out, err, there)]
                socket.send_fds(self.requests, [json.dumps(request).encode()], files)
            code = _end(here, timeout)
            out.seek(0)
            err.seek(0)
            texts = [file.read().decode() for file in (out, err)]
        return subprocess.CompletedProcess(arguments, code, *texts)


def _end(server: socket.socket, timeout: float) -> int:
    """Wait until a command has ended; its exit code."""
    server.settimeout(timeout)
    with server.makefile() as answer:
        process = int(answer.readline())
        try:
            return int(answer.readline())
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            raise


def _interpreted(
    arguments: list[str], folder: Path, timeout: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "builder", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=folder,
        env=environment,
        check=False,
    )


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    environment = sealed_environment(tmp_path_factory.mktemp("fork-server"))
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, str(Path(__file__).with_name("forkserver.py"))]
    with here, subprocess.Popen(command, stdin=there, env=environment):
        there.close()
        yield ForkServer(here, environment)
        here.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def builder(fork_server: ForkServer) -> Builder:
    """Run the command line in a process of its own, as a user would."""

    def run(
        *arguments: str | Path, timeout: float = 900, cwd: Path = REPOSITORY
    ) -> subprocess.CompletedProcess[str]:
        return fork_server.run([*map(str, arguments)], cwd, timeout)

    return run
