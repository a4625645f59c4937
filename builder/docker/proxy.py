"""A proxy to a server in a container without a network, which itself reaches nothing.

Root connects from inside the container's network where the engine is on this machine (setns(2),
network_namespaces(7)).  Elsewhere each connection goes through ``docker exec``: bash in the
container connects to the container's loopback (/dev/tcp).
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from builder.core.errors import UntriedError
from builder.core.pipes import input_of, output_of
from builder.docker.client import stream
from builder.docker.containers import Container

LOOPBACK = "127.0.0.1"
CLONE_NEWNET = 0x40000000  # linux/sched.h
# The end of the server's connection ends the program, even where standard input stays open.
BRIDGE = "exec 3<>/dev/tcp/127.0.0.1/$0; cat <&0 >&3 & cat <&3; kill $!"
BLOCK = 1 << 16
ENDING = 3.0  # seconds from the end of a program to the end of its container, under load


@contextmanager
def proxy(container: Container, port: int) -> Iterator[str]:
    """The URL of a server that listens on ``port`` in the container, within this context.

    Raises ``UntriedError`` where the container can only be reached through bash, and has none.
    """
    with (
        network_of(container) as network,
        socket.create_server((LOOPBACK, 0), backlog=64) as listener,
    ):
        if network is not None:
            bridge = partial(_bridge_network, network, port)
        else:
            _require_bash(container)
            bridge = partial(_bridge_exec, container.name, port)
        threading.Thread(target=_accept, args=(listener, bridge), daemon=True).start()
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            with suppress(OSError):  # some systems do not shut down what only listens
                listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def network_of(container: Container) -> Iterator[int | None]:
    """A descriptor of the network of a container; None where this process cannot enter it."""
    identity, process = container.identity()
    try:
        descriptor = os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
    except OSError:
        yield None
        return
    try:
        yield descriptor if _can_enter(descriptor, process, identity) else None
    finally:
        os.close(descriptor)


def _can_enter(network: int, process: int, identity: str) -> bool:
    try:
        # The process may belong to another machine's engine: its id says nothing here.
        if identity not in Path(f"/proc/{process}/cgroup").read_text("utf-8"):
            return False
        with ThreadPoolExecutor(1) as thread:
            thread.submit(_enter, network).result()
    except OSError:
        return False
    return True


def _enter(network: int) -> None:
    """Move the calling thread into a network: a socket stays in the one that it was made in."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is new in Python 3.12
    if libc.setns(network, CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _require_bash(container: Container) -> None:
    tried = container.execute(["bash", "-c", "type cat"], 30)
    until = time.monotonic() + ENDING  # a container that is ending runs nothing
    while tried.status != 0 and container.state().running:
        if time.monotonic() >= until:
            raise UntriedError(
                "the image has no bash, which is needed to reach its server", tried.output
            )
        time.sleep(0.1)


def _accept(listener: socket.socket, bridge: Callable[[socket.socket], None]) -> None:
    with suppress(OSError):  # the listener is closed at the end
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=bridge, args=(connection,), daemon=True).start()


def _bridge_network(network: int, port: int, connection: socket.socket) -> None:
    with connection, suppress(OSError):
        _enter(network)
        with socket.create_connection((LOOPBACK, port)) as server:
            threading.Thread(target=_copy, args=(connection, server), daemon=True).start()
            _copy(server, connection)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(BLOCK):
            target.sendall(block)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _bridge_exec(name: str, port: int, connection: socket.socket) -> None:
    execute = ("exec", "--interactive", name, "bash", "-c", BRIDGE, str(port))
    with connection, stream(*execute, stdin=subprocess.PIPE, bufsize=0) as process:
        threading.Thread(target=_send, args=(connection, process), daemon=True).start()
        with suppress(OSError):
            while block := output_of(process).read(BLOCK):
                connection.sendall(block)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _send(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    server = input_of(process)
    with suppress(OSError):
        while block := connection.recv(BLOCK):
            server.write(block)
    with suppress(OSError):
        server.close()
