"""The blobs of the engine's images: in containerd's store, or in a saved OCI image layout."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from builder.core import archives
from builder.core.errors import FetchError, UntriedError, WorldError
from builder.core.parallel import output_of
from builder.docker import client
from builder.docker import engine as docker

CONTENT = "io.containerd.content.v1.content/blobs/sha256"
CONTAINERD = Path("/var/lib/containerd")


@dataclass(frozen=True, slots=True)
class Blobs:
    """A directory of blobs, and the index of an image in it."""

    folder: Path
    """Its files are named by the 64 hex digits of their sha256."""
    index: Mapping[str, Any]
    """OCI image index (image-spec, image-index.md)."""
    platform: str = "linux/amd64"
    """The image that is read of an index for several platforms."""

    def file(self, digest: str) -> Path:
        """The file of a blob, whether it exists or not."""
        return self.folder / digest.removeprefix("sha256:")


def blobs_of(reference: str, work: Path, digest: str = "") -> Blobs:
    """The blobs of an image of the engine; ``work`` takes a copy where containerd's is unreadable.

    ``digest`` is the image's, where it is known.

    Root reads them in containerd's store (containerd, docs/content-flow.md): ``docker image save``
    manages about 50 MB/s.  Raises ``UntriedError`` where the engine does not give them.
    """
    if not digest:
        found = docker.image(reference)
        if found is None:
            raise UntriedError(f"Docker has no image {reference}")
        digest = found.digest
    for store in (docker.engine().root / "containerd" / "daemon", CONTAINERD):
        blobs = Blobs(store / CONTENT, {"manifests": [{"digest": digest}]})
        if os.access(blobs.file(digest), os.R_OK):
            return blobs
    folder = work / f"image-{digest[-12:]}"
    if not (folder / "index.json").exists():
        try:
            save_layout(reference, folder)
        except WorldError as error:
            raise UntriedError(error.what, error.why, error.hint) from error
    index = json.loads((folder / "index.json").read_bytes())
    return Blobs(folder / "blobs" / "sha256", index)


def save_layout(reference: str, folder: Path) -> None:
    """Unpack an image of the engine into the new ``folder``, as an OCI image layout."""
    try:
        with _saved(reference) as stream:
            archives.unpack_stream(stream, folder)
    except FetchError as error:
        raise WorldError(f"Docker does not give the image {reference}", error.why) from error
    if not (folder / "index.json").is_file():
        raise WorldError(
            f"`docker image save` gives no OCI layout of {reference}",
            hint="use Docker 25 or newer with the containerd image store",
        )


def build_contexts(images: Mapping[str, str], folder: Path, *, seen: bool) -> dict[str, str]:
    """Images of the engine by any name, as ``--build-context`` takes them.

    A builder that has ``seen`` the images of the engine takes them by name.  For any other they
    are written below ``folder``, and only the layers that it lacks are sent
    (https://docs.docker.com/reference/cli/docker/buildx/build/#source-oci-layout).  Raises
    ``WorldError`` where the engine does not give one.
    """
    if seen:
        return {name: f"docker-image://{image}" for name, image in images.items()}
    found = {}
    for name, image in images.items():
        saved = docker.image(image)
        if saved is None:
            raise WorldError(f"Docker lost the image {image}", hint="build again")
        save_layout(image, folder / name)
        found[name] = f"oci-layout://{folder / name}@{saved.digest}"
    return found


@contextmanager
def _saved(reference: str) -> Iterator[IO[bytes]]:
    """The tar of ``docker image save``, while it is written."""
    with (
        tempfile.TemporaryFile() as errors,
        client.stream("image", "save", reference, stderr=errors) as process,
        output_of(process) as stream,
    ):
        try:
            yield stream
            while stream.read(1 << 20):
                pass  # the end of a tar is not the end of the stream
        except FetchError as error:
            # A truncated stream is no tar; the engine's own message explains more.
            _require_success(process, reference, errors, error)
            raise
        finally:
            if process.poll() is None:
                process.terminate()
        _require_success(process, reference, errors, None)


def _require_success(
    process: subprocess.Popen[bytes], reference: str, errors: IO[bytes], cause: Exception | None
) -> None:
    try:
        status = process.wait(5)
    except subprocess.TimeoutExpired:
        return
    if status > 0:
        errors.seek(0)
        why = errors.read().decode(errors="replace").strip()
        raise WorldError(f"Docker does not give the image {reference}", why) from cause
