"""Servers on loopback that send what no honest server sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Hostile:
    """A server: its ``address``, the heads of requests so far, and the bytes that it sent."""

    address: str
    heads: list[str] = field(default_factory=list)
    sent: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.address}"


Serve = Callable[[socket.socket, Hostile], None]


@contextmanager
def serving(serve: Serve) -> Iterator[Hostile]:
    """A server that reads the head of one request of each connection and then calls ``serve``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Hostile(f"127.0.0.1:{listener.getsockname()[1]}")

        def each(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                head = b""
                while b"\r\n\r\n" not in head and (part := connection.recv(1 << 16)):
                    head += part
                server.heads.append(head.decode("latin-1"))
                serve(connection, server)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=each, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)  # else it takes the connections of the next server with this number


def closing(content: bytes) -> Serve:
    """Send that, as it is, and close the connection."""

    def serve(connection: socket.socket, server: Hostile) -> None:
        for start in range(0, len(content), 1 << 20):
            block = content[start : start + (1 << 20)]
            connection.sendall(block)
            server.sent += len(block)

    return serve


def trickling(head: bytes, pause: float = 0.05) -> Serve:
    """Send ``head`` and then a byte at a time, for ever."""
    ended = threading.Event()

    def serve(connection: socket.socket, server: Hostile) -> None:
        connection.sendall(head)
        while not ended.wait(pause):
            connection.sendall(b" ")
            server.sent += 1

    return serve


def answer(status: str, content: bytes = b"", **headers: str) -> bytes:
    """A response; the names of headers have _ in place of -."""
    named = {"Content_Length": str(len(content)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items() if value]
    return f"HTTP/1.1 {status}\r\n{''.join(lines)}\r\n".encode() + content
