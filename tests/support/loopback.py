"""HTTP servers on loopback, for the time of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Quiet(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening(server: ThreadingHTTPServer) -> Iterator[str]:
    """The server answers in a thread of its own: its address and port."""
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving_with(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server of such requests: its address and port."""
    with listening(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as address:
        yield address
