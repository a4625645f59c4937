"""What a registry lacks of an image is uploaded under its digest, the manifest last."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

from builder.errors import RegistryError
from builder.record import Record
from builder.tools import docker
from builder.tools.registry import Manifest, Repository, blobs_of

BLOCK = 1 << 20


def upload(
    repository: Repository, record: Record, work: Path, *, new: bool
) -> tuple[Manifest, int]:
    """Upload what the registry lacks of an image; its manifest, and how many blobs that were.

    ``work`` is an empty directory for the saved image; ``new``: the registry has no image of that
    name yet.  Raises ``RegistryError`` where the engine no longer has the image, ``FetchError``.
    """
    blobs = _saved(record.references[0], work)
    file = blobs.get(record.digest)
    if file is None:
        raise RegistryError(
            f"the engine no longer has {record.digest}",
            f"{record.references[0]} is another image now",
            f"build it again: `builder build {record.recipe}`",
        )
    content = file.read_bytes()
    manifest = Manifest(content, json.loads(content)["mediaType"])
    count = 0
    for blob in blobs_of(manifest):
        count += repository.put_blob(blob, blobs[blob], new=new)
    repository.put_manifest(record.digest, manifest)
    return manifest, count


def _saved(reference: str, work: Path) -> dict[str, Path]:
    """The blobs of an image of the engine as files, by digest."""
    found: dict[str, Path] = {}
    folder = work / "blobs"
    folder.mkdir(exist_ok=True)
    with docker.saved(reference) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            blob = tar.extractfile(member) if member.name.startswith("blobs/sha256/") else None
            if blob is None:
                continue
            name = member.name.rpartition("/")[2]
            file = folder / name
            with file.open("wb") as sink:
                shutil.copyfileobj(blob, sink, BLOCK)
            found[f"sha256:{name}"] = file
    return found
