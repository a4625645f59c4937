"""A real registry behind a proxy that can misbehave."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LEFT_OUT = {"content-length", "transfer-encoding", "connection", "date", "server"}


@dataclass
class Fault:
    """What happens to the next ``times`` requests whose "METHOD PATH" matches.

    A number is the status of the answer; "cut" closes in the middle of what is sent, "lie" answers
    with other bytes, "slow" waits a second.
    """

    matching: str
    what: int | str
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Proxy:
    """A loopback address before a registry; ``requests`` are those that reached it, in order.

    ``ahead`` are the seconds that its clock is before this machine's.
    """

    address: str
    ahead: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def next_fault(self, request: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.matching, request):
                fault.times -= 1
                return fault
        return None

    def count(self, matching: str) -> int:
        return sum(1 for request in self.requests if re.search(matching, request))


@contextmanager
def proxied(registry: str) -> Iterator[Proxy]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            request = f"{self.command} {self.path}"
            proxy.requests.append(request)
            length = int(self.headers.get("Content-Length") or 0)
            fault = proxy.next_fault(request)
            if fault is not None and fault.what == "cut":
                self.rfile.read(length // 2)
                self.close_connection = True
                return
            body = self.rfile.read(length)
            if fault is not None and isinstance(fault.what, int):
                self.answer(fault.what, b"", fault.headers)
                return
            if fault is not None and fault.what == "slow":
                time.sleep(1)
            connection = http.client.HTTPConnection(registry)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            if fault is not None and fault.what == "lie":
                content = content.replace(b'"schemaVersion":2', b'"schemaVersion": 2')
                content = content.replace(b'"schemaVersion": 2', b'"schemaVersion":  2')
            kept = {
                name: value for name, value in answer.getheaders() if name.lower() not in LEFT_OUT
            }
            size = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.answer(answer.status, content, kept, size)
            connection.close()

        def answer(
            self, status: int, content: bytes, headers: dict[str, str], size: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", size or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string((timestamp or time.time()) + proxy.ahead)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy = Proxy(f"127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
