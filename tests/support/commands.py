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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import IO, Any

import pytest

from support.environment import REPOSITORY, sealed_environment

Builder = Callable[..., "subprocess.CompletedProcess[str]"]

AT_IMPORT = (
    *("BUILDER_PROGRAM", "COLUMNS", "FORCE_COLOR", "LANG", "LC_ALL", "NO_COLOR", "PATH", "TERM"),
    *("PYTHONIOENCODING", "PYTHONPATH", "PYTHONUTF8", "TTY_COMPATIBLE"),
)
"""Variables that Python, builder or its libraries read before a command runs."""


class Running:
    """Commands that a fork server has started; ``pid`` is their process, or leads their session."""

    def __init__(self, streams: list[IO[bytes]], answers: socket.socket) -> None:
        self.returncode: int | None = None
        self._streams = streams
        self._answers = answers
        self._lines = answers.makefile("rb", buffering=0)  # poll() asks the socket
        self.pid = int(self._lines.readline())

    def wait(self, timeout: float = 900) -> int:
        """Wait until the commands have ended; kill them, and raise, where they do not."""
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = int(self._lines.readline())
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
                raise
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, or None where the commands have not ended."""
        ended, _, _ = select([self._answers], [], [], 0)
        return self.wait() if ended or self.returncode is not None else None

    def communicate(self, timeout: float = 900) -> tuple[str, str]:
        """Wait; what was written on both streams."""
        self.wait(timeout)
        texts = []
        for stream in self._streams:
            stream.seek(0)
            texts.append(stream.read().decode())
        return texts[0], texts[1]


@dataclass(frozen=True)
class ForkServer:
    """See support/forkserver.py."""

    requests: socket.socket
    environment: dict[str, str]

    @contextmanager
    def running(
        self,
        *commands: list[str],
        folder: Path = REPOSITORY,
        environment: Mapping[str, str] = os.environ,
        session: bool = False,
        at: float | None = None,
    ) -> Iterator[Running]:
        """Start commands, one after the other, in forks of the server.

        ``session``: in a session of their own; ``at`` is the time that their clock shows.
        """
        request = {
            "commands": commands,
            "folder": str(folder),
            "environment": {**environment},
            "session": session,
            "time": at,
        }
        with ExitStack() as stack:
            none = stack.enter_context(Path(os.devnull).open("rb"))
            streams = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
            here, there = map(stack.enter_context, socket.socketpair())
            with there:
                files = [each.fileno() for each in (none, *streams, there)]
                socket.send_fds(self.requests, [json.dumps(request).encode()], files)
            yield Running(streams, here)

    def run(
        self,
        arguments: list[str],
        folder: Path = REPOSITORY,
        timeout: float = 900,
        environment: Mapping[str, str] = os.environ,
        at: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own, forked where an interpreter would be the same."""
        if any(environment.get(name) != self.environment.get(name) for name in AT_IMPORT):
            assert at is None
            return _interpreted(arguments, folder, timeout, environment)
        options: Any = {"folder": folder, "environment": environment, "at": at}
        with self.running(arguments, **options) as process:
            texts = process.communicate(timeout)
            return subprocess.CompletedProcess(arguments, process.wait(), *texts)


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
