"""Layers and images of the OCI image format, made of a few files."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from builder.tools.docker.blobs import Blobs

Entry = tuple[str, bytes | str | None]
"""A path, and its bytes, where it links to ("->x"; "=x" for a hard link), or None: a folder."""


def layer(*entries: Entry) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type = tarfile.SYMTYPE if content.startswith("->") else tarfile.LNKTYPE
                info.linkname = content.lstrip("->=")
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


class Image:
    """An OCI layout in the making."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def blob(self, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    def document(self, value: Any) -> dict[str, Any]:
        return self.blob(json.dumps(value).encode())

    def manifest(self, *layers: bytes, architecture: str = "amd64") -> dict[str, Any]:
        config = {
            "os": "linux",
            "architecture": architecture,
            "config": {"Env": ["A=1", "B"]},
            "history": [{"created_by": "ADD", "empty_layer": False} for _ in layers],
        }
        parts = [self.blob(each) for each in layers]
        manifest = self.document({"config": self.document(config), "layers": parts})
        return manifest | {"platform": {"os": "linux", "architecture": architecture}}

    def in_folder(self, folder: Path, *manifests: dict[str, Any], without: str = "") -> Blobs:
        index = self.document({"manifests": list(manifests)})
        folder.mkdir()
        for name, data in self.blobs.items():
            if not (without and without in name):
                (folder / name).write_bytes(data)
        return Blobs(folder, {"manifests": [index]})
