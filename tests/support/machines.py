"""Another machine to compile on: a second Docker engine, known to buildx in two ways.

It shares nothing with the first one but the kernel: directories, containerd, mounts and network
are its own.  (Without a network of its own, dockerd --bridge=none would take docker0 away from the
first.)  Its BuildKit answers as the engine of a Docker context, and over a socket of its own as
any BuildKit of the driver "remote" does.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.docker import buildx
from builder.measure.setup import engine_settings
from support.environment import DOCKER_CONFIG

AS_ROOT = () if os.geteuid() == 0 else ("sudo", "-n")
CONTEXT, REMOTE = "other", "far"
# unshare(1) gives a network with nothing but a loopback that is down: SIOCSIFFLAGS, IFF_UP.
LOOPBACK_UP = (
    "import fcntl, os, socket, struct, sys\n"
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 1))\n"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
# As the Docker Engine API names it: from here on the connection speaks BuildKit's gRPC.
UPGRADE = (
    b"POST /grpc HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    b"Content-Length: 0\r\n\r\n"
)


@dataclass(frozen=True)
class Machine:
    """The second engine, and the client's configuration that knows it."""

    host: str
    config: Path
    process: int

    def docker(self, *arguments: str) -> str:
        """Have the second engine do something."""
        command = ["docker", f"--host={self.host}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def running(self, *command: str | Path) -> Iterator[None]:
        """Have a server run beside the second engine, on its loopback, until it is not needed."""
        beside = [*AS_ROOT, "nsenter", f"--target={self.process}", "--net", "--"]
        with subprocess.Popen([*beside, *map(str, command)], stderr=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                subprocess.run([*AS_ROOT, "kill", "--", str(process.pid)], check=False)


@contextmanager
def another_machine(client: Path) -> Iterator[Machine]:
    """Start it; ``client`` is the directory of the configuration that knows only the first."""
    # Not the test's own directory: sockets have short paths.
    folder = Path(tempfile.mkdtemp(prefix="builder-"))
    config = folder / "client"
    config.mkdir()
    if (client / "cli-plugins").is_dir():
        (config / "cli-plugins").symlink_to(client / "cli-plugins")
    host = f"unix://{folder / 'engine.sock'}"
    (folder / "daemon.json").write_text(engine_settings(10**11))
    command = [
        *(*AS_ROOT, "unshare", "--net", "--mount", "--", sys.executable, "-c", LOOPBACK_UP),
        *("dockerd", f"--config-file={folder / 'daemon.json'}", f"--host={host}"),
        *(f"--data-root={folder / 'data'}", f"--exec-root={folder / 'exec'}"),
        *(f"--pidfile={folder / 'pid'}", "--bridge=none", "--iptables=false", "--ip6tables=false"),
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(host, process, folder / "log")
        machine = Machine(host, config, int((folder / "pid").read_text()))
        _know(machine, folder)
        with _buildkit(folder / "buildkit.sock", folder / "engine.sock"):
            yield machine
    finally:
        _stop(process, folder)


def _wait(host: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        command = ["docker", f"--host={host}", "info"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"the second engine does not answer:\n{log.read_text()}")


def _know(machine: Machine, folder: Path) -> None:
    for command in (
        ["context", "create", CONTEXT, f"--docker=host={machine.host}"],
        ["context", "create", "gone", f"--docker=host=unix://{folder / 'gone.sock'}"],
        [
            "buildx",
            "create",
            f"--name={REMOTE}",
            "--driver=remote",
            f"unix://{folder}/buildkit.sock",
        ],
    ):
        environment = os.environ | {"DOCKER_CONFIG": str(machine.config)}
        subprocess.run(["docker", *command], check=True, capture_output=True, env=environment)


def _stop(process: subprocess.Popen[bytes], folder: Path) -> None:
    with suppress(OSError, ValueError):
        pid = (folder / "pid").read_text().strip()
        subprocess.run([*AS_ROOT, "kill", "--", str(int(pid))], check=False)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        subprocess.run([*AS_ROOT, "kill", "-9", "--", str(process.pid)], check=False)
        process.wait()
    if AS_ROOT:
        subprocess.run([*AS_ROOT, "rm", "-rf", "--", str(folder)], check=False)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _buildkit(path: Path, engine: Path) -> Iterator[None]:
    """A socket that is the engine's BuildKit and nothing else."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        threading.Thread(target=_serve, args=(listening, engine), daemon=True).start()
        yield
        listening.shutdown(socket.SHUT_RDWR)


def _serve(listening: socket.socket, engine: Path) -> None:
    with suppress(OSError):
        while True:
            client, _ = listening.accept()
            threading.Thread(target=_relay, args=(client, engine), daemon=True).start()


def _relay(client: socket.socket, engine: Path) -> None:
    with client, socket.socket(socket.AF_UNIX) as server:
        server.connect(str(engine))
        server.sendall(UPGRADE)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += server.recv(1)
        there = threading.Thread(target=_pump, args=(client, server), daemon=True)
        there.start()
        _pump(server, client)
        there.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="session")
def second_machine() -> Iterator[Machine]:
    with another_machine(DOCKER_CONFIG) as machine:
        yield machine


@pytest.fixture
def machine(second_machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The second engine, known to the client of this test alone."""
    monkeypatch.setenv("DOCKER_CONFIG", str(second_machine.config))
    buildx.builder.cache_clear()
    yield second_machine
    buildx.builder.cache_clear()
