"""Upload an image under its digest: the blobs that the registry lacks, then the manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import RegistryError
from builder.records.record import Record
from builder.tools.docker import blobs as engine
from builder.tools.docker.blobs import Blobs
from builder.tools.registry.client import Manifest, Repository, blobs_of

ZSTD = "+zstd"
"""The end of a layer's media type (OCI image specification, "Image Layer Filesystem Changeset")."""
REFUSED = ("MANIFEST_INVALID", "UNSUPPORTED", "415 ")
"""Codes of the distribution specification ("Error Codes"), and a status, for a manifest that a
registry does not take."""


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image of the engine, with its blobs."""

    manifest: Manifest
    blobs: Blobs

    def config(self) -> dict[str, Any]:
        """Its configuration, unchecked."""
        config = self.manifest.body.config
        if config is None:
            return {}
        found: dict[str, Any] = json.loads(self.blobs.file(config.digest).read_bytes())
        return found


def local_image(record: Record, work: Path) -> LocalImage:
    """The image of a record; ``work`` is a directory for blobs that the engine has to save first.

    Raises ``RegistryError`` where the engine no longer has the image.
    """
    blobs = engine.blobs_of(record.references[0], work)
    file = blobs.file(record.digest)
    if not file.is_file():
        raise RegistryError(
            f"Docker no longer has {record.digest}",
            f"{record.references[0]} is another image now",
            f"build it again: `builder build {record.recipe}`",
        )
    content = file.read_bytes()
    return LocalImage(Manifest(content, json.loads(content)["mediaType"]), blobs)


def upload(repository: Repository, image: LocalImage, *, new: bool) -> int:
    """Upload an image under its digest; how many blobs were uploaded.

    ``new``: the repository is empty.  Raises ``RegistryError``, also where the registry takes no
    layers of this compression, ``FetchError``.
    """
    count = 0
    for blob in blobs_of(image.manifest):
        count += repository.put_blob(blob, image.blobs.file(blob), new=new)
    try:
        repository.put_manifest(image.manifest.digest, image.manifest)
    except RegistryError as error:
        layers = image.manifest.body.layers or []
        zstd = any(layer.mediaType.endswith(ZSTD) for layer in layers)
        if not zstd or not any(code in error.why for code in REFUSED):
            raise
        raise RegistryError(
            f"{repository.registry} refuses the manifest of an image with zstd layers",
            error.why,
            'if it takes only gzip, set compression = "gzip" in [image] of the recipe and build it '
            "again; no tag was moved",
        ) from error
    return count
