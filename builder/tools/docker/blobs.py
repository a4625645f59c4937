"""The blobs of the engine's images: where containerd keeps them, or as the engine saves them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import FetchError, UntriedError
from builder.tools import archives
from builder.tools.docker import engine as docker

CONTENT = "io.containerd.content.v1.content/blobs/sha256"
CONTAINERD = Path("/var/lib/containerd")


@dataclass(frozen=True, slots=True)
class Blobs:
    """A directory of blobs, and the index that leads to an image in it."""

    folder: Path
    """Its files are named by the 64 hex digits of their sha256."""
    index: Mapping[str, Any]
    """OCI image index (image-spec, image-index.md)."""

    def file(self, digest: str) -> Path:
        """The file of a blob, whether or not it is there."""
        return self.folder / digest.removeprefix("sha256:")


def blobs_of(reference: str, work: Path) -> Blobs:
    """The blobs of an image of the engine; ``work`` takes a copy where no other way is open.

    Root reads them where containerd has them (containerd, docs/content-flow.md); ``docker image
    save`` packs about 50 MB/s.  Raises ``UntriedError`` where the engine does not give them.
    """
    found = docker.image(reference)
    if found is None:
        raise UntriedError(f"the engine has no image {reference}")
    for store in (docker.engine().root / "containerd" / "daemon", CONTAINERD):
        blobs = Blobs(store / CONTENT, {"manifests": [{"digest": found.digest}]})
        if os.access(blobs.file(found.digest), os.R_OK):
            return blobs
    return _saved(reference, work / f"image-{found.digest[-12:]}")


def _saved(reference: str, folder: Path) -> Blobs:
    """The blobs of an image in a directory of our own."""
    index = folder / "index.json"
    if not index.exists():
        try:
            with docker.saved(reference) as stream:
                archives.unpack_stream(stream, folder)
        except FetchError as error:
            raise UntriedError(f"the engine does not give {reference}", error.why) from error
        if not index.is_file():
            raise UntriedError(
                f"`docker image save` gives no OCI layout of {reference}",
                hint="use Docker 25 or newer with the containerd image store",
            )
    return Blobs(folder / "blobs" / "sha256", json.loads(index.read_bytes()))
