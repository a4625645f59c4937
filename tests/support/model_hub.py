"""A real HTTP server with the Hugging Face Hub's published API for files, and its CDN.

``/OWNER/NAME/resolve/main/FILE`` redirects to another host, which answers range requests
(huggingface_hub, ``file_download.hf_hub_url`` and ``_request_wrapper``; errors by X-Error-Code).
``/api/models/OWNER/NAME?blobs=True`` lists the files (``HfApi.model_info``).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pytest

from support.loopback import Quiet, serving_with

TOKEN = "hf_test"


def use(patch: pytest.MonkeyPatch, **variables: str) -> None:
    """Set variables of the Hub's client, which reads them when it is imported."""
    for name, value in variables.items():
        patch.setenv(name, value)
    reread()


def reread() -> None:
    """Make the Hub's client read its variables again, where it was imported."""
    if "huggingface_hub.constants" in sys.modules:
        importlib.reload(sys.modules["huggingface_hub.constants"])


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
    digests: dict[str, str] = field(default_factory=dict)
    """The sha256 of files where the list names another one than their own."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Handler(Quiet):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        host = self.headers["Host"].split(":")[0]
        self.hub.requests.append((host, self.path, self.headers.get("Authorization")))
        if listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)\?blobs=\w+", self.path):
            self.list_files(listed[1])
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

    def list_files(self, repository: str) -> None:
        folder = self.hub.folder / repository
        if not folder.is_dir():
            self.refuse(404, "RepoNotFound", "Repository not found")
            return
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        listed = [self.listed(file, folder) for file in files]
        content = json.dumps({"id": repository, "siblings": listed})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def listed(self, file: Path, folder: Path) -> dict[str, object]:
        path = file.relative_to(folder).as_posix()
        size = file.stat().st_size
        digest = self.hub.digests.get(path) or hashlib.sha256(file.read_bytes()).hexdigest()
        lfs = {"sha256": digest, "size": size, "pointerSize": 134}
        return {"rfilename": path, "size": size, "blobId": "0" * 40, "lfs": lfs}

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
            with file.open("rb") as stream:
                self.send_content(stream, size)
            return
        start, end = int(wanted[1]), min(int(wanted[2] or size) + 1, size)
        if start >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        with file.open("rb") as stream:
            stream.seek(start)
            self.send_content(stream, end - start)

    def send_content(self, stream: BinaryIO, size: int) -> None:
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.hub.cuts:
            size = self.hub.cuts.pop(0)
            self.close_connection = True
        with suppress(ConnectionError):  # a client that wants the header alone closes
            while block := stream.read(min(size, 1 << 20)):
                self.wfile.write(block)
                self.hub.sent += len(block)
                size -= len(block)


@contextmanager
def served(folder: Path) -> Iterator[Hub]:
    """The Hub at 127.0.0.1, and its CDN at localhost."""
    hub = Hub(folder)
    with serving_with(type("Own", (Handler,), {"hub": hub})) as address:
        hub.port = int(address.partition(":")[2])
        yield hub
