"""Members of tars: as Python's tarfile writes them, and as no honest program does."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from typing import Any

import pytest

from builder.tools.layers import tar
from builder.tools.layers.blob import Stream
from builder.tools.layers.image import DamagedImageError
from support.layouts import layer, layer_of, member

LONG = "/".join(["folder" * 8] * 3)


def members(data: bytes) -> list[tar.Member]:
    return list(tar.members(Stream(iter([data[:700], data[700:]]))))


def header(name: str, kind: bytes, content: bytes = b"", size: int | None = None) -> bytes:
    """A member of any type."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_tarfile_writes_is_read(form: int) -> None:
    written: list[tuple[str, dict[str, Any]]] = [
        ("a", {"mode": 0o4755, "uid": 1000, "gid": 5, "mtime": 1234567890}),
        (LONG + "/name", {}),
        ("é", {"mtime": 5}),
        ("folder", {"type": tarfile.DIRTYPE, "mode": 0o700}),
        ("link", {"type": tarfile.SYMTYPE, "linkname": "a" * 99}),
        ("hard", {"type": tarfile.LNKTYPE, "linkname": "a"}),
        ("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("disk", {"type": tarfile.BLKTYPE, "devmajor": 8, "devminor": 0}),
        ("pipe", {"type": tarfile.FIFOTYPE}),
    ]
    if form != tarfile.USTAR_FORMAT:
        written += [("x" * 300, {}), ("to", {"type": tarfile.SYMTYPE, "linkname": "y" * 300})]
        written += [("user", {"uid": 1 << 30, "gid": 1 << 31})]
    if form == tarfile.PAX_FORMAT:
        attributes = {"SCHILY.xattr.user.b": "2", "SCHILY.xattr.user.a": "\x01\0é"}
        written += [("attributes", {"mtime": 1.5, "pax_headers": attributes})]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as made:
        for name, properties in written:
            regular = "type" not in properties
            made.addfile(*opened(*member(name, b"12" if regular else b"", **properties)))
    found = members(out.getvalue())
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as read:
        expected = read.getmembers()
    assert [each.name.rstrip("/") for each in found] == [each.name for each in expected]
    properties = ("mode", "uid", "gid", "mtime", "size", "type")
    assert [(m.mode, m.user, m.group, m.time, m.size, m.type) for m in found] == [
        tuple(getattr(each, name) for name in properties) for each in expected
    ]
    kinds = ["file"] * 3 + ["directory", "link", "file", "device", "device", "fifo"]
    assert [each.kind for each in found][: len(kinds)] == kinds
    assert [each.link for each in found[4:8]] == ["a" * 99, "a", "c 1:3", "b 8:0"]
    if form == tarfile.PAX_FORMAT:
        value = "\x01\0é".encode().hex()
        assert found[-1].attributes == (("user.a", value), ("user.b", b"2".hex()))


def opened(info: tarfile.TarInfo, content: bytes) -> tuple[tarfile.TarInfo, io.BytesIO]:
    return info, io.BytesIO(content)


def test_a_long_name_counts_before_a_pax_path_and_a_global_header_not_at_all() -> None:
    pax = tarfile.TarInfo.create_pax_global_header({"path": "global"})
    extended = pax.replace(b"\0g\0", b"\0x\0")  # not enough: its checksum is for another type
    assert extended == pax
    [named] = members(layer_of(member("plain", pax_headers={"path": "pax"})))
    assert named.name == "pax"
    renamed = layer_of(member("plain", pax_headers={"path": "pax"}))[:1024]
    after = renamed + header("", b"L", b"long\0") + header("plain", b"0")
    assert [each.name for each in members(after)] == ["long"]
    assert [each.name for each in members(pax + header("plain", b"0"))] == ["plain"]


def test_digits_after_a_nul_count() -> None:
    data = bytearray(header("a", b"0", b"x" * 8))
    data[124:136] = b"\00000000000\x310"[:12].ljust(12, b"\0")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    assert members(bytes(data))[0].size == 8


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a size of exabytes": lambda: header("a", b"0", b"1", size=1 << 60),
    "a pax header of a gigabyte": lambda: header("a", b"x", size=1 << 30),
    "a long name of a gigabyte": lambda: header("a", b"L", size=1 << 30),
    "a negative header": lambda: header("a", b"L", size=-512),
    "a negative size": lambda: header("a", b"0", size=-512),
    "a negative size in pax": lambda: layer_of(member("a", pax_headers={"size": "-512"})),
    "a size that is no number": lambda: layer_of(member("a", pax_headers={"size": "1e3"})),
    "an endless time": lambda: layer_of(member("a", pax_headers={"mtime": "9" * 400})),
    "NUL in a name": lambda: layer_of(member("a", pax_headers={"path": "a\0b"})),
    "NUL in a link": lambda: layer_of(member("a", pax_headers={"linkpath": "a\0b"})),
    "a sparse file": lambda: header("a", b"S"),
    "a sparse file in pax": lambda: layer_of(
        member("a", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.realsize": "9" * 18})
    ),
    "an unknown type": lambda: header("a", b"Z"),
    "a wrong checksum": lambda: b"b" + header("a", b"0")[1:],
    "half a header": lambda: header("a", b"0")[:100],
    "a record without a value": lambda: header("a", b"x", b"6 path\n"),
    "a record past the end": lambda: header("a", b"x", b"99 path=a\n"),
    "a record without a length": lambda: header("a", b"x", b"path=a\n"),
    "a prefix of an old format": lambda: old_prefix(),
}


def old_prefix() -> bytes:
    data = bytearray(header("a", b"0"))
    data[345:350] = b"usr/b"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tar_is_an_error(case: str) -> None:
    with pytest.raises(DamagedImageError):
        members(layer(("before", b"1"))[:1024] + HOSTILE[case]())


def test_the_headers_of_a_layer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar, "LARGEST_HEADERS", 4096)
    assert len(members(layer(*((f"{number}", b"") for number in range(8))))) == 8
    with pytest.raises(DamagedImageError, match="4,096 bytes of headers"):
        members(layer(*((f"{number}", b"") for number in range(9))))
    with pytest.raises(DamagedImageError, match="4,096 bytes of headers"):
        members(layer_of(*(member(f"{n}", pax_headers={"x": "y" * 2000}) for n in range(2))))
