"""Upload an image under its digest: the blobs that the registry lacks, then the manifest."""

from __future__ import annotations

import json
from pathlib import Path

from builder.errors import RegistryError
from builder.records.record import Record
from builder.tools.docker import blobs as engine
from builder.tools.registry.client import Manifest, Repository, blobs_of


def upload(
    repository: Repository, record: Record, work: Path, *, new: bool
) -> tuple[Manifest, int]:
    """Upload an image of the engine; its manifest, and how many blobs were uploaded.

    ``work`` is a directory for blobs that the engine has to save first; ``new``: the repository is
    empty.  Raises ``RegistryError`` where the engine no longer has the image, ``FetchError``.
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
    manifest = Manifest(content, json.loads(content)["mediaType"])
    count = 0
    for blob in blobs_of(manifest):
        count += repository.put_blob(blob, blobs.file(blob), new=new)
    repository.put_manifest(record.digest, manifest)
    return manifest, count
