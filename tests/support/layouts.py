"""Layers and images of the OCI image format, made of a few files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from backports import zstd

from builder.docker.containers import Blobs

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


def member(name: str, content: bytes = b"", **properties: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A file of a layer, or with ``type`` something else, with any property of ``TarInfo``."""
    info = tarfile.TarInfo(name)
    info.mode, info.size = 0o644, len(content)
    for key, value in properties.items():
        setattr(info, key, value)
    return info, content


def layer_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _unpacked(layer: bytes) -> bytes:
    if layer.startswith(b"\x1f\x8b"):
        with suppress(EOFError, OSError):
            return gzip.decompress(layer)
    return zstd.decompress(layer) if layer.startswith(b"\x28\xb5\x2f\xfd") else layer


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

    def manifest(self, *layers: bytes, architecture: str = "amd64", **more: Any) -> dict[str, Any]:
        ids = [hashlib.sha256(_unpacked(each)).hexdigest() for each in layers]
        config = {
            "os": "linux",
            "architecture": architecture,
            "config": {"Env": ["A=1", "B"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each}" for each in ids]},
            "history": [{"created_by": "ADD", "empty_layer": False} for _ in layers],
            **more,
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

    def saved(self, name: str, *layers: bytes) -> bytes:
        """What ``docker load`` takes: an image of these layers (image-spec, image-layout.md)."""
        kind = "application/vnd.oci.image"
        made = self.manifest(*layers, config={})
        manifest = json.loads(self.blobs.pop(made["digest"].removeprefix("sha256:")))
        manifest |= {"schemaVersion": 2, "mediaType": f"{kind}.manifest.v1+json"}
        manifest["config"]["mediaType"] = f"{kind}.config.v1+json"
        for part in manifest["layers"]:
            part["mediaType"] = f"{kind}.layer.v1.tar"
        entry = self.document(manifest) | {
            "mediaType": f"{kind}.manifest.v1+json",
            "annotations": {"io.containerd.image.name": f"docker.io/{name}"},
        }
        index = {"schemaVersion": 2, "manifests": [entry]}
        files = {
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps(index).encode(),
            **{f"blobs/sha256/{digest}": data for digest, data in self.blobs.items()},
        }
        return layer(*files.items())
