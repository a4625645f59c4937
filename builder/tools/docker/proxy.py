"""A proxy to a server in a container without a network, which itself reaches nothing.

Root connects from inside the container's network where the engine is on this machine.  Elsewhere
each connection goes through ``docker exec``: bash in the container connects to the container's
loopback (/dev/tcp).
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from builder.errors import UntriedError
from builder.tools.docker.client import stream
from builder.tools.docker.containers import Container
from builder.tools.docker.namespace import LOOPBACK, connected, network_of
from builder.tools.pipes import input_of, output_of

# The end of the server's connection ends the program, even where standard input stays open.
BRIDGE = "exec 3<>/dev/tcp/127.0.0.1/$0; cat <&0 >&3 & cat <&3; kill $!"
Bridge = Callable[[socket.socket], None]
"""Connects an accepted connection to the server."""
BLOCK = 1 << 16
ENDING = 3.0  # seconds from the end of a program to the end of its container, under load


def _keeps_running(container: Container) -> bool:
    """Whether a container still runs ``ENDING`` seconds later: an ending one runs nothing."""
    until = time.monotonic() + ENDING
    while container.state().running:
        if time.monotonic() >= until:
            return True
        time.sleep(0.1)
    return False


@contextmanager
def proxy(container: Container, port: int) -> Iterator[str]:
    """The URL of a server that listens on ``port`` in the container, within this context.

    Raises ``UntriedError`` where the container can only be reached through bash, and has none.
    """
    with network_of(container) as network:
        if network is not None:
            bridge = partial(_bridge_network, network, port)
        else:
            _require_bash(container)
            bridge = partial(_bridge_exec, container.name, port)
        with _listening(bridge) as url:
            yield url


def _require_bash(container: Container) -> None:
    tried = container.execute(["bash", "-c", "type cat"], 30)
    if tried.status != 0 and _keeps_running(container):
        raise UntriedError(
            "the image has no bash, which is needed to reach its server", tried.output
        )


@contextmanager
def _listening(bridge: Bridge) -> Iterator[str]:
    """A URL, each of whose connections is bridged in a thread."""
    with socket.create_server((LOOPBACK, 0), backlog=64) as listener:
        threading.Thread(target=_accept, args=(listener, bridge), daemon=True).start()
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        finally:
            with suppress(OSError):  # some systems do not shut down what only listens
                listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, bridge: Bridge) -> None:
    with suppress(OSError):  # the listener is closed at the end
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=bridge, args=(connection,), daemon=True).start()


def _bridge_network(network: int, port: int, connection: socket.socket) -> None:
    with connection, suppress(OSError), connected(network, port) as server:
        threading.Thread(target=_copy, args=(connection, server), daemon=True).start()
        _copy(server, connection)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until either end closes; then close both."""
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
