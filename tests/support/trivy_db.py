"""A small database of trivy's, so that the real program finds what a test planted.

The file is bbolt's (https://github.com/etcd-io/bbolt, internal/common: page.go, meta.go,
inode.go), its contents are trivy-db's of schema 2 (https://github.com/aquasecurity/trivy-db,
pkg/db): the advisories of a package are in a bucket of their source, details beside them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = 1 << 16  # one page is enough for a test
LEAF, META, FREE = 0x02, 0x04, 0x10
Bucket = Mapping[str, "Bucket | bytes"]


def _leaf(number: int, bucket: Bucket) -> bytes:
    """A leaf page without padding; buckets within it are inline."""
    heads, data = b"", b""
    for place, (name, value) in enumerate(sorted(bucket.items())):
        inner = not isinstance(value, bytes)
        content = value if isinstance(value, bytes) else struct.pack("<QQ", 0, 0) + _leaf(0, value)
        start = 16 * (len(bucket) - place) + len(data)
        heads += struct.pack("<IIII", inner, start, len(name.encode()), len(content))
        data += name.encode() + content
    return struct.pack("<QHHI", number, LEAF, len(bucket), 0) + heads + data


def _meta(number: int) -> bytes:
    body = struct.pack("<IIIIQQQQQ", 0xED0CDAED, 2, PAGE, 0, 3, 0, 2, 4, number)
    total = 0xCBF29CE484222325  # FNV-1a
    for byte in body:
        total = (total ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return struct.pack("<QHHI", number, META, 0, 0) + body + struct.pack("<Q", total)


def bolt(bucket: Bucket) -> bytes:
    """A database of bbolt with these buckets."""
    pages = (_meta(0), _meta(1), struct.pack("<QHHI", 2, FREE, 0, 0), _leaf(3, bucket))
    assert all(len(page) <= PAGE for page in pages)
    return b"".join(page.ljust(PAGE, b"\0") for page in pages)


def write(cache: Path, advisories: Mapping[str, Any], details: Mapping[str, Any]) -> None:
    """A database in trivy's cache directory.

    ``advisories`` are by source ("debian 13"), package and id; ``details`` by id.
    """
    sources = {"ID": "debian", "Name": "Debian Security Tracker", "URL": "https://debian.invalid"}
    buckets: dict[str, Any] = {
        "data-source": {name: json.dumps(sources).encode() for name in advisories},
        "vulnerability": {name: json.dumps(each).encode() for name, each in details.items()},
        **{
            source: {
                package: {name: json.dumps(each).encode() for name, each in found.items()}
                for package, found in packages.items()
            }
            for source, packages in advisories.items()
        },
    }
    folder = cache / "db"
    folder.mkdir(parents=True)
    (folder / "trivy.db").write_bytes(bolt(buckets))
    dates = {"UpdatedAt": "2026-11-28T06:00:00Z", "NextUpdate": "2099-01-01T00:00:00Z"}
    metadata = {"Version": 2, **dates, "DownloadedAt": "2026-11-28T07:00:00Z"}
    (folder / "metadata.json").write_text(json.dumps(metadata))
