"""An image in a directory of blobs: its manifest and its configuration.

OCI image specification (https://github.com/opencontainers/image-spec): manifest.md, config.md.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tarfile import TarError
from threading import Event
from typing import Any

from builder.core.errors import UntriedError
from builder.core.files import is_disk_full
from builder.docker.blobs import Blobs

LARGEST_DOCUMENT = 16 << 20  # bytes of a manifest or configuration
BROKEN = (
    *(OSError, EOFError, OverflowError, RecursionError, TarError, zlib.error),
    *(AttributeError, KeyError, TypeError, ValueError),
)
"""Exceptions that a damaged image causes."""


class DamagedImageError(ValueError):
    """A blob is damaged, or is no image that an engine takes; the text says where and how."""


@contextmanager
def damage_reported() -> Iterator[None]:
    """Raise ``UntriedError`` where reading an image fails: a blob is missing or damaged."""
    from backports.zstd import ZstdError

    try:
        yield
    except (*BROKEN, ZstdError) as error:
        if is_disk_full(error):
            raise
        named = "" if isinstance(error, DamagedImageError) else f"{type(error).__name__}: "
        reason = f"{named}{error}"
        raise UntriedError("the image cannot be read", reason) from error


def manifest_of(blobs: Blobs) -> tuple[str, dict[str, Any]]:
    """The manifest of the image with its digest.  An index leads to the image for the platform of
    ``blobs`` if there is one, else to the first one.

    Raises ``UntriedError`` where no image of the index is there, and the exceptions that
    ``damage_reported`` catches.
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

    Raises the exceptions that ``damage_reported`` catches.
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
    """A manifest, an index or a configuration; raises like ``platforms_of``."""
    if file.stat().st_size > LARGEST_DOCUMENT:
        raise DamagedImageError(f"{file.name} is larger than {LARGEST_DOCUMENT} bytes")
    content = file.read_bytes()
    require_digest(file, hashlib.sha256(content))
    found = json.loads(content)
    return dict(found.items())


def require_digest(blob: Path, found: hashlib._Hash) -> None:
    """Raise ``DamagedImageError`` if a blob does not match its digest."""
    if found.hexdigest() != blob.name:
        raise DamagedImageError(f"the blob {blob.name} has the sha256 {found.hexdigest()}")


@contextmanager
def two_at_a_time() -> Iterator[tuple[ThreadPoolExecutor, Event]]:
    """Threads that read two layers at a time: unpacking and hashing leave Python's lock.

    Where the block fails or is interrupted, the event is set: see ``entries``.
    """
    stop = Event()
    with ThreadPoolExecutor(2) as pool:
        try:
            yield pool, stop
        except BaseException:
            stop.set()
            raise


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
