"""The text files of a wheel, read from the package index without its shared objects.

The sha256 of the index covers the whole file, not a part of it.  So the files are verified by the
wheel's own RECORD (a sha256 for each file), and its METADATA by the digest that the index may
publish.  That detects damage on the way; an attacker who can alter the wheel on the server can
alter its RECORD, so nothing is built from parts.
https://packaging.python.org/en/latest/specifications/recording-installed-packages/#the-record-file
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import archives
from builder.core.errors import FetchError
from builder.core.remote_file import PartialReadError, RemoteFile
from builder.core.web import Client

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage

UNRECORDED = ("RECORD", "RECORD.jws", "RECORD.p7s")


def unpack(client: Client, package: DistributionPackage, target: Path) -> None:
    """Write the text files of a wheel to the new directory ``target``.

    Raises ``PartialReadError`` where they cannot be read in parts or do not match the RECORD, and
    ``WebError`` where the server does not answer.
    """
    remote = RemoteFile(client, package.url)
    try:
        with zipfile.ZipFile(io.BufferedReader(remote)) as wheel:
            archives.extract_texts(wheel, package.filename, remote.size, target)
        _verify(target, (package.metadata_digests or {}).get("sha256"))
    except (FetchError, csv.Error, *archives.DAMAGED) as error:
        raise PartialReadError(f"it cannot be unpacked in parts: {error}") from error


def _verify(folder: Path, metadata: str | None) -> None:
    records = [*folder.glob("*.dist-info/RECORD")]
    if len(records) != 1:
        raise PartialReadError("it has no RECORD")
    info = records[0].parent
    with records[0].open(encoding="utf-8", newline="") as lines:
        recorded = {row[0]: row[1] for row in csv.reader(lines) if len(row) > 1}
    for file in folder.rglob("*"):
        if file.is_dir() or (file.parent == info and file.name in UNRECORDED):
            continue
        path = file.relative_to(folder).as_posix()
        if recorded.get(path) != _recorded(file):
            raise PartialReadError(f"{path} does not match its RECORD")
    if metadata is not None and metadata != _sha256(info / "METADATA").hex():
        raise PartialReadError("its METADATA does not match the package index")


def _sha256(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest()


def _recorded(file: Path) -> str:
    """A file's digest in the format of RECORD (PEP 376)."""
    return "sha256=" + base64.urlsafe_b64encode(_sha256(file)).decode().rstrip("=")
