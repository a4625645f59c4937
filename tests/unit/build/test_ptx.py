"""Files of PTX: the same content gives the same bytes, and the newest of a recipe stay."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from backports import zstd

from builder.build import ccache
from builder.core import archives
from builder.core.errors import FetchError


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir()
    for digit in "ab":
        (folder / f"{digit * 64}.gz").write_bytes(gzip.compress(digit.encode() * 1000))
    return folder


def test_the_same_ptx_gives_the_same_bytes(kept: Path, tmp_path: Path) -> None:
    first, second = (ccache.path_of(tmp_path, "x-1", key * 64) for key in "12")
    ccache.pack(kept, first)
    for file in kept.iterdir():  # compressed at another time, by another program
        file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()), 1, mtime=1))
    ccache.pack(kept, second)
    assert first.read_bytes() == second.read_bytes()
    assert ccache.digests(first) == {"a" * 64, "b" * 64}
    ccache.unpack(first, tmp_path / "out")
    assert (tmp_path / "out" / f"{'a' * 64}.ptx").read_text() == "a" * 1000


def test_a_damaged_file_is_named(kept: Path, tmp_path: Path) -> None:
    file = ccache.path_of(tmp_path, "x-1", "1" * 64)
    assert ccache.digests(file) == frozenset()
    ccache.pack(kept, file)
    whole = file.read_bytes()
    for damaged in (whole[:-10], b"no archive"):
        file.write_bytes(damaged)
        with pytest.raises(FetchError, match=r"111111111111\.tar\.zst"):
            ccache.digests(file)


def packed(*sizes: int) -> bytes:
    """Files of zeros as somebody else may attach them."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for number, size in enumerate(sizes):
            member = tarfile.TarInfo(f"{number:064}.ptx")
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
    return zstd.compress(content.getvalue())


def test_a_file_of_a_registry_is_unpacked_only_as_far_as_its_size_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE", 1 << 20)
    file, folder = tmp_path / "x.tar.zst", tmp_path / "out"
    file.write_bytes(packed(1 << 20))
    ccache.unpack(file, tmp_path / "small")
    for hostile in (packed(4 << 20), packed(*[1 << 19] * 3), b"no zstd", packed(9)[:-9]):
        file.write_bytes(hostile)
        with pytest.raises(FetchError, match="cannot be unpacked"):
            ccache.unpack(file, folder)
        assert not folder.exists()


def test_the_newest_files_of_a_recipe_stay(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ccache, "MOST", 2)
    for number in range(4):
        file = ccache.path_of(tmp_path, "x-1", f"{number}" * 64)
        ccache.pack(kept, file)
        os.utime(file, (number, number))
    left = {file.name[0] for file in file.parent.iterdir()}
    assert left == {"2", "3"}
