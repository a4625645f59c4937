"""Servers on loopback that fail as real servers and proxies do."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import trustme

Handler = Callable[[socket.socket], None]


@contextmanager
def serving(handler: Handler) -> Iterator[tuple[int, list[int]]]:
    """The port of a server that handles each connection so, and a list that counts them."""
    count: list[int] = []

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                count.append(1)
                with suppress(OSError), connection:
                    handler(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1], count
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)  # else it takes the connections of the next server with this number


def nothing(connection: socket.socket) -> None:
    """Close the connection."""


def answering(status: str) -> Handler:
    """Answer a request with a status and its reason: "503 Service Unavailable"."""

    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())

    return answer


def with_tls(name: str, then: Handler) -> tuple[Handler, trustme.CA]:
    """Handle a connection behind TLS, with a certificate for a name; its authority."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            then(secured)

    return answer, authority


def cut(connection: socket.socket) -> None:
    """Begin a response, and close the connection within it."""
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n001e# service")
