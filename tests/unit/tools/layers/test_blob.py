"""Layers unpacked: gzip in several members, and what is cut off."""

from __future__ import annotations

import gzip
import hashlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.tools.layers.blob import Stream, opened
from builder.tools.layers.image import DamagedImageError

TEXT = b"0123456789" * 20_000


def unpacked(folder: Path, data: bytes) -> bytes:
    blob = folder / hashlib.sha256(data).hexdigest()
    blob.write_bytes(data)
    with opened(blob) as stream:
        return b"".join(iter(lambda: stream.some(1 << 20), b""))


def test_a_gzip_file_may_have_members_and_bytes_after_them(tmp_path: Path) -> None:
    parts = [TEXT[:5], TEXT[5:100_000], b"", TEXT[100_000:]]
    packed = b"".join(map(gzip.compress, parts))
    assert unpacked(tmp_path, packed) == TEXT
    assert unpacked(tmp_path, packed + bytes(100)) == TEXT


def test_a_gzip_file_of_tiny_members_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(DamagedImageError, match=r"gzip members of [0-9]+ bytes or less"):
        unpacked(tmp_path, gzip.compress(b"a") * 100_000)
    # One member for each file (stargz) is a layer like any other.
    assert unpacked(tmp_path, gzip.compress(TEXT[:512]) * 5_000) == TEXT[:512] * 5_000


def test_small_blocks_are_joined_once() -> None:
    copied = tracked = 0

    def blocks() -> Iterator[bytes]:
        nonlocal copied, tracked
        for _ in range(1 << 15):
            now = tracemalloc.get_traced_memory()[0]
            copied, tracked = copied + (now != tracked), now
            yield b"a"

    tracemalloc.start()
    try:
        assert Stream(blocks()).read(1 << 20) == b"a" * (1 << 15)
    finally:
        tracemalloc.stop()
    assert copied < 1 << 10


@pytest.mark.parametrize("kept", [3, 15, -5])
def test_a_gzip_file_that_is_cut_off_is_damaged(tmp_path: Path, kept: int) -> None:
    with pytest.raises(DamagedImageError, match="cut off"):
        unpacked(tmp_path, gzip.compress(TEXT)[:kept])


def test_a_blob_with_other_bytes_is_damaged(tmp_path: Path) -> None:
    blob = tmp_path / ("0" * 64)
    blob.write_bytes(TEXT)
    with pytest.raises(DamagedImageError, match="the blob 0000"), opened(blob) as stream:
        stream.read(10)


def test_bytes_are_read_forward(tmp_path: Path) -> None:
    blob = tmp_path / hashlib.sha256(TEXT).hexdigest()
    blob.write_bytes(TEXT)
    with opened(blob) as stream:
        assert stream.read(5) == TEXT[:5]
        stream.skip_to(150_000)
        assert stream.read(10) == TEXT[150_000:150_010]
        with pytest.raises(DamagedImageError, match="ends at byte 200,000"):
            stream.skip_to(300_000)
