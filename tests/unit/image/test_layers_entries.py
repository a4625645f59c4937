"""Entries of layers: as Python's tarfile writes them, packed, and as no honest program does."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from builder.core.errors import UntriedError
from builder.image import layers as reader
from builder.image.layers import Content, LayerEntry, Node, damage_reported, layer_entries
from support.layouts import layer, layer_of, member

LONG = "/".join(["folder" * 8] * 3)


def read(folder: Path, data: bytes) -> list[LayerEntry[Node]]:
    def look(_: str, node: Node, content: Content | None) -> Node:
        return replace(node, digest=content.digest()) if content else node

    blob = folder / hashlib.sha256(data).hexdigest()
    blob.write_bytes(data)
    with damage_reported():
        return list(layer_entries(blob, look))


def header(name: str, kind: bytes, content: bytes = b"", size: int | None = None) -> bytes:
    """A member of any type."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_entry_is_read(tmp_path: Path, form: int) -> None:
    properties = {"mode": 0o4755, "uid": 1000, "gid": 5, "mtime": 1234567890}
    written: list[tuple[str, dict[str, Any], LayerEntry[Node]]] = [
        ("a", properties, LayerEntry("/a", Node("file", 0o4755, 1000, 5, 1234567890, 2))),
        (LONG + "/name", {}, LayerEntry(f"/{LONG}/name", Node("file", 0o644, size=2))),
        ("./é", {"mtime": 5}, LayerEntry("/é", Node("file", 0o644, time=5, size=2))),
        ("folder", {"type": tarfile.DIRTYPE}, LayerEntry("/folder", Node("directory", 0o644))),
        (
            "link",
            {"type": tarfile.SYMTYPE, "linkname": "a" * 99},
            LayerEntry("/link", Node("link", 0o644, target="a" * 99)),
        ),
        (
            "hard",
            {"type": tarfile.LNKTYPE, "linkname": "a"},
            LayerEntry("/hard", Node("file", 0o644), shares="/a"),
        ),
        (
            "null",
            {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
            LayerEntry("/null", Node("device", 0o644, target="c 1:3")),
        ),
        (
            "disk",
            {"type": tarfile.BLKTYPE, "devmajor": 8, "devminor": 0},
            LayerEntry("/disk", Node("device", 0o644, target="b 8:0")),
        ),
        ("pipe", {"type": tarfile.FIFOTYPE}, LayerEntry("/pipe", Node("fifo", 0o644))),
        ("d/.wh.x", {}, LayerEntry("/d/x", Node("file", 0o644, size=2), "path")),
        ("d/.wh..wh..opq", {}, LayerEntry("/d", Node("file", 0o644, size=2), "below")),
    ]
    if form != tarfile.USTAR_FORMAT:
        far = {"type": tarfile.SYMTYPE, "linkname": "y" * 300, "uid": 1 << 30, "gid": 1 << 31}
        node = Node("link", 0o644, 1 << 30, 1 << 31, target="y" * 300)
        written.append(("x" * 200, far, LayerEntry("/" + "x" * 200, node)))
    if form == tarfile.PAX_FORMAT:
        headers = {"SCHILY.xattr.user.b": "2", "SCHILY.xattr.user.a": "\x01\0é"}
        attributes = (("user.a", "\x01\0é".encode().hex()), ("user.b", b"2".hex()))
        node = Node("file", 0o644, time=1.5, size=2, attributes=attributes)
        more = {"mtime": 1.5, "pax_headers": headers}
        written.append(("attributes", more, LayerEntry("/attributes", node)))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as made:
        for name, more, _ in written:
            info, content = member(name, b"" if "type" in more else b"12", **more)
            made.addfile(info, io.BytesIO(content))
    digest = hashlib.sha256(b"12").hexdigest()
    found = read(tmp_path, out.getvalue())
    assert [replace(each, node=replace(each.node, digest="")) for each in found] == [
        entry for *_, entry in written
    ]
    assert {each.node.digest for each in found if not each.hides} == {digest, ""}


def test_packed_layers(tmp_path: Path) -> None:
    plain = layer(("a", os.urandom(300_000)), ("b", None))
    expected = read(tmp_path, plain)
    halves = [plain[:5], b"", plain[5:100_000], plain[100_000:]]
    members = b"".join(map(gzip.compress, halves))
    for packed in (members, members + bytes(100), b"".join(map(zstd.compress, halves))):
        assert read(tmp_path, packed) == expected
    # One member for each file (stargz) is a layer like any other.
    files = [layer((f"{number}", os.urandom(200)))[:1024] for number in range(5_000)]
    assert len(read(tmp_path, b"".join(map(gzip.compress, files)))) == 5_000


def test_a_layer_may_be_empty(tmp_path: Path) -> None:
    for data in (b"", bytes(512), bytes(1024), gzip.compress(b"")):
        assert read(tmp_path, data) == []


def test_a_global_header_names_no_file(tmp_path: Path) -> None:
    named = tarfile.TarInfo.create_pax_global_header({"path": "global"})
    assert [each.path for each in read(tmp_path, named + header("plain", b"0"))] == ["/plain"]


def test_a_blob_with_other_bytes_is_damaged(tmp_path: Path) -> None:
    blob = tmp_path / ("0" * 64)
    blob.write_bytes(layer(("a", b"1")))
    with pytest.raises(UntriedError) as raised, damage_reported():
        list(layer_entries(blob, lambda _, node, __: node))
    assert raised.value.why.startswith("the blob 0000")


def old_prefix() -> bytes:
    data = bytearray(header("a", b"0"))
    data[345:350] = b"usr/b"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9" * 18}
HOSTILE: dict[str, Callable[[], bytes]] = {
    "a size of exabytes": lambda: header("a", b"0", b"1", size=1 << 60),
    "a pax header of a gigabyte": lambda: header("a", b"x", size=1 << 30),
    "a long name of a gigabyte": lambda: header("a", b"L", size=1 << 30),
    "a long path": lambda: layer_of(member("a", pax_headers={"path": "a" * 5000})),
    "a negative header": lambda: header("a", b"L", size=-512),
    "a negative size": lambda: header("a", b"0", size=-512),
    "a negative size in pax": lambda: layer_of(member("a", pax_headers={"size": "-512"})),
    "an endless time": lambda: layer_of(member("a", pax_headers={"mtime": "9" * 400})),
    "a time that is no number": lambda: layer_of(member("a", pax_headers={"mtime": "nan"})),
    "NUL in a name": lambda: layer_of(member("a", pax_headers={"path": "a\0b"})),
    "NUL in a link": lambda: layer_of(member("a", pax_headers={"linkpath": "a\0b"})),
    "a sparse file": lambda: header("a", b"S"),
    "a sparse file in pax": lambda: layer_of(
        member("a", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "9" * 18})
    ),
    "a sparse file of version 1.0": lambda: layer_of(
        member("a", b"1\n0\n1\n".ljust(513), pax_headers=SPARSE)
    ),
    "an unknown type": lambda: header("a", b"Z"),
    "a wrong checksum": lambda: b"b" + header("a", b"0")[1:],
    "half a header": lambda: header("a", b"0")[:100],
    "a file that is cut off": lambda: header("a", b"0", b"1" * 5000)[:2048],
    "a prefix of an old format": old_prefix,
    "a chain of headers": lambda: header("a", b"x", b"10 a=bcde\n") * 5000,
    "the whiteout of no file": lambda: header("d/.wh.", b"0"),
    "the whiteout of the folder above": lambda: header("d/.wh...", b"0"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tar_is_an_error(tmp_path: Path, case: str) -> None:
    with pytest.raises(UntriedError, match="the image cannot be read"):
        read(tmp_path, layer(("before", b"1"))[:1024] + HOSTILE[case]())


@pytest.mark.parametrize("kept", [3, 15, 500])
def test_a_gzip_file_that_is_cut_off_is_damaged(tmp_path: Path, kept: int) -> None:
    with pytest.raises(UntriedError):
        read(tmp_path, gzip.compress(layer(("a", os.urandom(1000))))[:kept])


def test_a_gzip_file_of_empty_members_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SLACK", 1 << 16)
    with pytest.raises(UntriedError) as raised:
        read(tmp_path, gzip.compress(b"") * 10_000)
    assert "packed into more bytes than it has" in raised.value.why


def test_the_headers_of_a_layer_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LARGEST_HEADERS", 4096)
    assert len(read(tmp_path, layer(*((f"{number}", b"") for number in range(8))))) == 8
    for many in (
        layer(*((f"{number}", b"") for number in range(9))),
        layer_of(*(member(f"{n}", pax_headers={"x": "y" * 2000}) for n in range(2))),
    ):
        with pytest.raises(UntriedError) as raised:
            read(tmp_path, many)
        assert "4,096 bytes of headers" in raised.value.why
