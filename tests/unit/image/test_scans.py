"""Scans of layers in the cache: used for the same bytes, and only where they lack nothing."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from builder.core.errors import UntriedError
from builder.docker.containers import Blobs
from builder.image import contents as scans
from builder.image.contents import Contents, File, ReadOptions, read_contents
from builder.image.layers import LayerEntry
from simulator.selection import Capability
from support.cubins import Function, cubin
from support.fatbins import ELF, FLAG_A, ZSTD, entry, library, region
from support.layouts import Image, layer

CODE = ReadOptions(card=Capability(12, 0))
KERNELS = region(entry(ELF, 120, FLAG_A | ZSTD, cubin(Function("k"))))
LARGE = ("large", random.Random(1).randbytes(scans.SMALLEST))
FILES = layer(
    ("etc", None),
    ("etc/ld.so.conf", b"/opt/lib"),
    ("etc/.wh.gone", b""),
    ("opt/.wh..wh..opq", b""),
    ("opt/lib/a.so", library(KERNELS).getvalue()),
    ("opt/lib/damaged.so", b"\x7fELF"),
    ("opt/text", b"hf_" + b"a" * 34),
    ("opt/hard", "=opt/text"),
    ("opt/link", "->text"),
    LARGE,
)
OTHER = [LayerEntry("/of-the-scan", File("/of-the-scan", "file"))]


@pytest.fixture
def stored(tmp_path: Path) -> Blobs:
    """The blobs of an image of one layer."""
    image = Image()
    return image.in_folder(tmp_path / "blobs", image.manifest(FILES))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "scans"


DIGEST = hashlib.sha256(FILES).hexdigest()


def paths(contents: Contents) -> set[str]:
    return {*contents.files}


@pytest.mark.parametrize("options", [ReadOptions(), CODE])
def test_a_layer_that_was_read_before_has_the_same_contents(
    tmp_path: Path, stored: Blobs, kept: Path, options: ReadOptions
) -> None:
    fresh = read_contents(stored, tmp_path, options)
    assert not kept.exists()
    assert fresh.files["/opt/text"].secrets == ("Hugging Face token",)
    assert fresh.files["/opt/lib/damaged.so"].malformed
    assert len(fresh.files["/opt/lib/a.so"].fat_binaries) == (options.card is not None)
    assert read_contents(stored, tmp_path, options, tmp_path) == fresh
    assert scans.scanned(kept, DIGEST, options) is not None
    assert read_contents(stored, tmp_path, options, tmp_path) == fresh


def test_a_scan_is_used_for_its_layer_and_its_device_code(
    tmp_path: Path, stored: Blobs, kept: Path
) -> None:
    scans.keep(kept, DIGEST, ReadOptions(), OTHER)
    assert paths(read_contents(stored, tmp_path, cache=tmp_path)) == {"/of-the-scan"}
    assert "/opt/text" in paths(read_contents(stored, tmp_path, CODE, tmp_path))
    image = Image()
    others = image.in_folder(tmp_path / "others", image.manifest(layer(LARGE)))
    assert paths(read_contents(others, tmp_path, cache=tmp_path)) == {"/large"}


def test_the_bytes_of_a_layer_are_hashed_all_the_same(tmp_path: Path, stored: Blobs) -> None:
    read_contents(stored, tmp_path, cache=tmp_path)
    blob = stored.folder / DIGEST
    blob.write_bytes(FILES[:-1] + b"x")
    with pytest.raises(UntriedError, match="cannot be read") as raised:
        read_contents(stored, tmp_path, cache=tmp_path)
    assert f"the blob {DIGEST} has the sha256" in raised.value.why


def test_texts_and_symbols_are_read_where_the_scan_lacks_them(
    tmp_path: Path, stored: Blobs, kept: Path
) -> None:
    options = ReadOptions(texts=frozenset({"/opt/te*"}), symbols=frozenset({"a"}))
    for _ in range(2):
        found = read_contents(stored, tmp_path, options, tmp_path).files
        assert (found["/opt/text"].text, found["/opt/hard"].text) == ("hf_" + "a" * 34,) * 2
        assert found["/opt/lib/a.so"].symbols == frozenset()
    plain = read_contents(stored, tmp_path, cache=tmp_path)
    assert plain == read_contents(stored, tmp_path)
    assert plain.files["/etc/ld.so.conf"].text == "/opt/lib"
    # What no file of the layer has is no reason to read it.
    scans.keep(kept, DIGEST, ReadOptions(), OTHER)
    elsewhere = ReadOptions(texts=frozenset({"/opt/te*"}), symbols=frozenset({"a"}))
    assert paths(read_contents(stored, tmp_path, elsewhere, tmp_path)) == {"/of-the-scan"}


@pytest.mark.parametrize("content", [b"", b"[]", b"0" * 64 + b"[]", b"cut"])
def test_a_damaged_scan_is_made_again(
    tmp_path: Path, stored: Blobs, kept: Path, content: bytes
) -> None:
    fresh = read_contents(stored, tmp_path, cache=tmp_path)
    (file,) = kept.iterdir()
    good = file.read_bytes()
    file.write_bytes(good[:-9] if content == b"cut" else content)
    assert read_contents(stored, tmp_path, cache=tmp_path) == fresh
    assert file.read_bytes() == good


def test_scans_that_are_small_or_have_no_utf8_are_not_kept(tmp_path: Path, kept: Path) -> None:
    image = Image()
    small, odd = layer(("a", b"a")), layer(("\udcff", b"a"), LARGE)
    blobs = image.in_folder(tmp_path / "blobs", image.manifest(small, odd))
    for _ in range(2):
        assert paths(read_contents(blobs, tmp_path, cache=tmp_path)) == {"/a", "/\udcff", "/large"}
    assert not kept.exists()


def test_the_scans_not_used_for_longest_go_first(kept: Path) -> None:
    for number in range(scans.MOST + 1):
        scans.keep(kept, f"{number:064}", ReadOptions(), OTHER)
        (file,) = kept.glob(f"{number:064}-*")
        os.utime(file, (number, number))
    assert scans.scanned(kept, f"{0:064}", ReadOptions()) is None
    assert scans.scanned(kept, f"{1:064}", ReadOptions()) == OTHER  # used now
    scans.keep(kept, "f" * 64, ReadOptions(), OTHER)
    assert scans.scanned(kept, f"{1:064}", ReadOptions()) == OTHER
    assert scans.scanned(kept, f"{2:064}", ReadOptions()) is None
    assert len([*kept.iterdir()]) == scans.MOST
