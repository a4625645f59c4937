"""A proxy to a server in a container without a network, through ``docker exec``.

Each connection starts bash in the container, which connects to the container's loopback
(/dev/tcp).  So the server can be reached on any engine, local or remote, and itself reaches
nothing.  The calls are our own: python-on-whales gives no process whose pipes stay open.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from builder.errors import UntriedError
from builder.tools.docker.containers import Container
from builder.tools.docker.engine import executable
from builder.tools.pipes import input_of, output_of

# The end of the server's connection ends the program, even where standard input stays open.
BRIDGE = "exec 3<>/dev/tcp/127.0.0.1/$0; cat <&0 >&3 & cat <&3; kill $!"
BLOCK = 1 << 16
ENDING = 3.0  # seconds from the end of a program to the end of its container, under load


def _keeps_running(container: Container) -> bool:
    """Whether a container still runs ``ENDING`` seconds later: one that ends executes nothing."""
    until = time.monotonic() + ENDING
    while container.state().running:
        if time.monotonic() >= until:
            return True
        time.sleep(0.1)
    return False


@contextmanager
def exec_proxy(container: Container, port: int) -> Iterator[str]:
    """The URL of a server that listens on ``port`` in the container, within this context.

    Raises ``UntriedError`` where the image has no bash.
    """
    tried = container.execute(["bash", "-c", "type cat"], 30)
    if tried.status != 0 and _keeps_running(container):
        raise UntriedError(
            "the image has no bash, which is needed to reach its server", tried.output
        )
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        accepting = threading.Thread(
            target=_accept, args=(listener, container.name, port), daemon=True
        )
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            with suppress(OSError):  # some systems do not shut down what only listens
                listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, name: str, port: int) -> None:
    with suppress(OSError):  # the listener is closed at the end
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_bridge, args=(connection, name, port), daemon=True).start()


def _bridge(connection: socket.socket, name: str, port: int) -> None:
    call = [executable(), "exec", "--interactive", name, "bash", "-c", BRIDGE, str(port)]
    with (
        connection,
        subprocess.Popen(
            call,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        threading.Thread(target=_send, args=(connection, process), daemon=True).start()
        with suppress(OSError):
            while block := output_of(process).read(BLOCK):
                connection.sendall(block)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        process.terminate()


def _send(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    stream = input_of(process)
    with suppress(OSError):
        while block := connection.recv(BLOCK):
            stream.write(block)
    with suppress(OSError):
        stream.close()
