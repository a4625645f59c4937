"""An image in a directory of blobs: its manifest, its configuration and the tar of each layer.

OCI image specification (https://github.com/opencontainers/image-spec): manifest.md, layer.md.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import IO, Any, Literal, cast

from builder.errors import UntriedError
from builder.tools.docker.blobs import Blobs
from builder.tools.files import is_disk_full

BLOCK = 1 << 20
BUFFER = 1 << 16  # bytes: tarfile copies the rest of its buffer for every small file
LARGEST_DOCUMENT = 16 << 20  # bytes of a manifest or configuration
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, 2.3.1
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1
BROKEN = (
    *(OSError, EOFError, tarfile.TarError, zlib.error),
    *(AttributeError, KeyError, TypeError, ValueError),
)
"""Exceptions that a damaged image causes."""
Hides = Literal["", "path", "below"]
"""What an entry of a layer removes of the layers below: nothing, its path, all below its path."""


@contextmanager
def damage_reported() -> Iterator[None]:
    """Raise ``UntriedError`` where reading an image fails: a blob is missing or damaged."""
    from backports.zstd import ZstdError

    try:
        yield
    except (*BROKEN, ZstdError) as error:
        if is_disk_full(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise UntriedError("the image cannot be read", reason) from error


def manifest_of(blobs: Blobs) -> tuple[str, dict[str, Any]]:
    """The manifest of the image with its digest: through indexes, that for the platform of
    ``blobs`` if there is one, else the first one.

    Raises ``UntriedError`` where no image of the index is there, and what ``damage_reported``
    catches.
    """
    # An engine runs an image that names its platform rather than one that names none.
    preferred = {blobs.platform: 0, "": 1}
    digest, found = "", blobs.index
    while "manifests" in found:
        images = _images(blobs, found)
        if not images:
            raise UntriedError("Docker has no image of the index")
        wanted = min(images, key=lambda entry: preferred.get(_platform(entry), len(preferred)))
        digest = wanted["digest"]
        found = document(blobs.file(digest))
    return digest, dict(found)


def platforms_of(blobs: Blobs) -> list[str]:
    """The platforms of all images that are there, in the order of the indexes: "linux/arm64".

    Raises what ``damage_reported`` catches.
    """
    return list(dict.fromkeys(_platforms(blobs, blobs.index)))


def _platforms(blobs: Blobs, found: Mapping[str, Any]) -> Iterator[str]:
    if "manifests" not in found:
        yield _platform({"platform": document(blobs.file(found["config"]["digest"]))})
        return
    for entry in _images(blobs, found):
        if named := _platform(entry):
            yield named
        else:
            yield from _platforms(blobs, document(blobs.file(entry["digest"])))


def _images(blobs: Blobs, index: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of an index that are there and no attestations."""
    there = (entry for entry in index["manifests"] if blobs.file(entry["digest"]).is_file())
    return [entry for entry in there if _platform(entry) != "unknown/unknown"]


def document(file: Path) -> dict[str, Any]:
    """A manifest, an index or a configuration; raises what ``damage_reported`` catches."""
    if file.stat().st_size > LARGEST_DOCUMENT:
        raise ValueError(f"{file.name} is larger than {LARGEST_DOCUMENT} bytes")
    content = file.read_bytes()
    require_digest(file, hashlib.sha256(content))
    found = json.loads(content)
    return dict(found.items())


def require_digest(blob: Path, found: hashlib._Hash) -> None:
    """Raise ``ValueError`` if a blob does not match its digest."""
    if found.hexdigest() != blob.name:
        raise ValueError(f"the blob {blob.name} has the sha256 {found.hexdigest()}")


class StoppedError(Exception):
    """Ends a thread that reads a layer; nobody waits for its result any more."""


@contextmanager
def two_at_a_time() -> Iterator[tuple[ThreadPoolExecutor, Event]]:
    """Threads that read two layers at a time: unpacking and hashing leave Python's lock.

    Where the block fails or is interrupted, the event is set: see ``opened``.
    """
    stop = Event()
    with ThreadPoolExecutor(2) as pool:
        try:
            yield pool, stop
        except BaseException:
            stop.set()
            raise


@contextmanager
def opened(blob: Path, stop: Event | None = None) -> Iterator[tarfile.TarFile]:
    """The tar of a layer, to be read in its order; it may be packed with gzip or zstd.

    Afterwards the digest of the whole blob is checked.  Raises what ``damage_reported`` catches,
    and ``StoppedError`` at the next block after ``stop`` is set.
    """
    from backports.zstd import ZstdFile

    with blob.open("rb") as file:
        head = file.read(4)
        file.seek(0)
        stream = _Hashed(file, stop)
        if head == ZSTD_MAGIC:
            with ZstdFile(cast("IO[bytes]", stream)) as unpacked, _tar(unpacked, "r|") as tar:
                yield tar
        else:
            with _tar(stream, "r|gz" if head[:2] == GZIP_MAGIC else "r|") as tar:
                yield tar
        while stream.read(BLOCK):
            pass  # the end of a tar is not the end of its blob
    require_digest(blob, stream.digest)


def place(member: tarfile.TarInfo) -> tuple[str, Hides]:
    """The absolute path that an entry of a layer is for, and what it hides of the layers below."""
    path = posixpath.normpath("/" + member.name)
    folder, name = posixpath.split(path)
    if name == OPAQUE:
        return folder, "below"
    if name.startswith(WHITEOUT):
        return posixpath.join(folder, name.removeprefix(WHITEOUT)), "path"
    return path, ""


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes], stop: Event | None) -> None:
        self.digest = hashlib.sha256()
        self._file = file
        self._stop = stop

    def read(self, size: int = -1) -> bytes:
        if self._stop is not None and self._stop.is_set():
            raise StoppedError
        block = self._file.read(size)
        self.digest.update(block)
        return block

    def readable(self) -> bool:
        return True


def _tar(stream: Any, mode: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode=mode, bufsize=BUFFER)


def _platform(entry: Mapping[str, Any]) -> str:
    platform = entry.get("platform")
    return f"{platform['os']}/{platform['architecture']}" if platform else ""


def created_by(image: Mapping[str, Any], count: int) -> list[str]:
    """The instruction of each of ``count`` layers; empty if the history does not match them.

    ``image`` is an OCI image configuration (image-spec: config.md, "history").
    """
    made = [
        str(step.get("created_by", ""))
        for step in image.get("history") or []
        if not step.get("empty_layer")
    ]
    return made if len(made) == count else [""] * count
