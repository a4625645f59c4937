"""A real HTTP server with the Hugging Face Hub's published API for files, and its CDN.

``/OWNER/NAME/resolve/main/FILE`` redirects to another host, which answers range requests
(huggingface_hub, ``file_download.hf_hub_url`` and ``_request_wrapper``; errors by X-Error-Code).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN = "hf_test"


@dataclass
class Hub:
    """The server; ``folder`` holds OWNER/NAME/FILE."""

    folder: Path
    port: int = 0
    gated: bool = False
    ranges: bool = True
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Host, path and authorization of each request."""
    sent: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        host = self.headers["Host"].split(":")[0]
        self.hub.requests.append((host, self.path, self.headers.get("Authorization")))
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/main/(.+)", self.path)
        if resolve is None:
            self.deliver(self.hub.folder / self.path.removeprefix("/cdn/").partition("?")[0])
            return
        if self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refuse(401, "GatedRepo", f"Access to model {resolve[1]} is restricted.")
        elif not (self.hub.folder / resolve[1] / resolve[2]).is_file():
            self.refuse(404, "EntryNotFound", "Entry not found")
        else:
            self.send_response(302)
            place = f"http://localhost:{self.hub.port}/cdn/{resolve[1]}/{resolve[2]}"
            self.send_header("Location", place)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def refuse(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def deliver(self, file: Path) -> None:
        size = file.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None or not self.hub.ranges:
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            self.wfile.write(b"GGUF")  # as much as a client reads that does not want all
            self.close_connection = True
            return
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, size)
        if start >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with file.open("rb") as stream:
            stream.seek(start)
            content = stream.read(end - start)
        self.hub.sent += len(content)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[Hub]:
    """The Hub at 127.0.0.1, and its CDN at localhost."""
    hub = Hub(folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"hub": hub})) as server:
        server.daemon_threads = True
        hub.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()
