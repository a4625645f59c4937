"""A real HTTP server with the Hugging Face Hub's published API for files, and its CDN.

``/OWNER/NAME/resolve/main/FILE`` redirects to another host, which answers range requests
(huggingface_hub, ``file_download.hf_hub_url`` and ``_request_wrapper``; errors by X-Error-Code).
``/api/models/OWNER/NAME/tree/main`` lists the files (``HfApi.list_repo_tree``).
"""

from __future__ import annotations

import hashlib
import json
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
    cuts: list[int] = field(default_factory=list)
    """Bytes after which the next responses end."""
    whole: bool = False
    """Whether a response without a range has the file, and not its beginning alone."""
    digests: dict[str, str] = field(default_factory=dict)
    """The sha256 of files where the list names another one than their own."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        host = self.headers["Host"].split(":")[0]
        self.hub.requests.append((host, self.path, self.headers.get("Authorization")))
        if listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/main\?.*", self.path):
            self.list_files(self.hub.folder / listed[1])
            return
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

    def list_files(self, folder: Path) -> None:
        if not folder.is_dir():
            self.refuse(404, "RepoNotFound", "Repository not found")
            return
        content = json.dumps([self.listed(file, folder) for file in sorted(folder.rglob("*"))])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def listed(self, file: Path, folder: Path) -> dict[str, object]:
        path = file.relative_to(folder).as_posix()
        if file.is_dir():
            return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
        size = file.stat().st_size
        digest = self.hub.digests.get(path) or hashlib.sha256(file.read_bytes()).hexdigest()
        lfs = {"oid": digest, "size": size, "pointerSize": 134}
        return {"type": "file", "oid": "0" * 40, "size": size, "path": path, "lfs": lfs}

    def refuse(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def deliver(self, file: Path) -> None:
        size = file.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not self.hub.ranges:
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.hub.whole:
                self.wfile.write(file.read_bytes())
                return
            self.wfile.write(b"GGUF")  # as much as a client reads that does not want all
            self.close_connection = True
            return
        start, end = int(wanted[1]), min(int(wanted[2] or size) + 1, size)
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
        if self.hub.cuts:
            self.wfile.write(content[: self.hub.cuts.pop(0)])
            self.close_connection = True
            return
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
