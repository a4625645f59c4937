"""A package index on loopback (PEP 691) whose files can be had in parts, and that can misbehave."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.loopback import Quiet, serving_with


def wheel(
    name: str, version: str, files: Mapping[str, bytes], *, recorded: Mapping[str, bytes] = {}
) -> bytes:
    """A wheel, with metadata of its own if ``files`` have none.

    ``recorded`` are contents that its RECORD has in place of those that it holds.
    """
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    held = {**files, f"{info}/METADATA": files.get(f"{info}/METADATA", metadata)}
    record = []
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for path, content in held.items():
            about = zipfile.ZipInfo(path)
            about.external_attr = 0o100644 << 16
            about.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(about, content)
            digest = hashlib.sha256(recorded.get(path, content)).digest()
            short = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            record.append(f"{path},sha256={short},{len(content)}\n")
        made.writestr(f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]))
    return out.getvalue()


@dataclass
class Index:
    """Files by name; ``fault`` is asked for each request of a file and may answer otherwise."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By file: what its page says beside the usual."""
    ranges: bool = True
    faults: list[int | str] = field(default_factory=list)
    """A status; "cut": half of the answer; "other": a part of something larger."""
    asked: list[str] = field(default_factory=list)
    sent: int = 0
    """Bytes of files."""

    def put(self, name: str, version: str, content: bytes, **about: Any) -> str:
        """Offer a wheel for any machine; its sha256."""
        file = f"{name}-{version}-py3-none-any.whl"
        self.files[file] = content
        self.about[file] = about
        return hashlib.sha256(content).hexdigest()

    def page(self, project: str) -> dict[str, Any]:
        """A project's page."""
        files = [
            {
                "filename": file,
                "url": f"{self.url}/files/{file}",
                "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
                "size": len(content),
                **self.about[file],
            }
            for file, content in self.files.items()
            if file.replace("_", "-").startswith(f"{project}-")
        ]
        return {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": files}


class Handler(Quiet):
    """The index's answers."""

    index: Index

    def do_GET(self) -> None:
        self.index.asked.append(self.path)
        if self.path.startswith("/simple/"):
            page = json.dumps(self.index.page(self.path.split("/")[2])).encode()
            kind = "application/vnd.pypi.simple.v1+json"
            self.answer(200 if b'"filename"' in page else 404, page, {"Content-Type": kind})
            return
        content = self.index.files[self.path.split("/")[2]]
        fault = self.index.faults.pop(0) if self.index.faults else ""
        if isinstance(fault, int):
            self.answer(fault, b"no", {})
            return
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not self.index.ranges:
            self.index.sent += len(content)
            self.answer(200, content, {})
            return
        start = int(wanted[1]) if wanted[1] else max(len(content) - int(wanted[2]), 0)
        end = min(int(wanted[2]) + 1, len(content)) if wanted[1] else len(content)
        size = len(content) * (2 if fault == "other" else 1)
        self.index.sent += end - start
        head = {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        self.answer(206, content[start:end], head, cut=fault == "cut")

    def answer(
        self, status: int, body: bytes, headers: dict[str, str], *, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)


@contextmanager
def served() -> Iterator[Index]:
    """An empty index."""
    index = Index()
    with serving_with(type("Own", (Handler,), {"index": index})) as address:
        index.url = f"http://{address}"
        yield index
