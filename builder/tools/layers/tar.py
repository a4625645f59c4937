"""The members of a layer's tar, as the engine reads them.

Formats: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar's manual,
"Basic Tar Format".  Where they leave a choice, this reader does as Go's archive/tar, with which
engines unpack layers.  Python's tarfile reads otherwise: it applies global headers, prefers a pax
path to a long name of GNU tar, and reads digits after a NUL as 0; so it can show files that no
container has. Members that the engine refuses, or reads by rules of old tars, are errors here; so
are sparse files, which image-spec (layer.md) advises against: few bytes can claim any size.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from builder.tools.layers.blob import Stream
from builder.tools.layers.image import DamagedImageError

Kind = Literal["file", "link", "directory", "device", "fifo"]
ATTRIBUTE = "SCHILY.xattr."  # of an extended attribute in a pax header, as GNU tar writes it
SPARSE = "GNU.sparse."
BLOCK = 512
LARGEST_HEADER = 1 << 20  # bytes of a pax header or a long name, as in archive/tar
LARGEST_HEADERS = 1 << 29
"""Bytes of all headers of a layer: a million members.  A layer of vLLM has 60,000."""
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s8s64x8s8s155s8x4s")
_USTAR, _GNU = b"ustar\0", b"ustar  \0"
_STAR = b"tar\0"
HARD_LINK = b"1"
_KINDS: Mapping[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"1": "file",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"5": "directory",
    b"6": "fifo",
}
_DEVICES = {b"3": "c", b"4": "b"}
_EXTENDED = b"xgLK"
"""Types of headers for the next member, and of a global one."""
_TIME = re.compile(r"-?\d{1,18}(?:\.\d*)?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_LENGTH = re.compile(rb"(\d{1,9}) ", re.ASCII)


class Member(NamedTuple):
    """A member of a tar; ``link`` is the target of a link, or of a hard link."""

    name: str
    type: bytes
    kind: Kind
    mode: int
    user: int
    group: int
    time: float
    size: int
    """Bytes of content, which follow."""
    link: str
    attributes: tuple[tuple[str, str], ...]
    """Extended attributes in the order of their names; values in hex."""


class _Header(NamedTuple):
    name: bytes
    mode: int
    user: int
    group: int
    size: int
    time: int
    type: bytes
    link: bytes
    device: str
    """``c 1:3``; empty: it is no device."""


def members(stream: Stream) -> Iterator[Member]:
    """The members in their order; content that was not read is passed over.

    Raises ``DamagedImageError`` for a tar that the engine would refuse.
    """
    pax: dict[str, str] = {}
    name = link = b""
    headers = 0
    while (header := _header(stream)) is not None:
        start, size = stream.position, header.size
        if header.type in _EXTENDED:
            if not 0 <= size <= LARGEST_HEADER:
                raise DamagedImageError(f"{_where(stream)}: a header of {size:,} bytes")
            data = _content(stream, size)
            if header.type == b"L":
                name = data.partition(b"\0")[0]
            elif header.type == b"K":
                link = data.partition(b"\0")[0]
            elif header.type == b"x":
                pax = _records(data, stream)
            else:  # it is ignored, and what came before it is lost
                pax, name, link = {}, b"", b""
        else:
            member = _member(header, pax, name, link, stream)
            size = member.size
            pax, name, link = {}, b"", b""
            yield member
        headers += BLOCK + size * (header.type in _EXTENDED)
        if headers > LARGEST_HEADERS:
            raise DamagedImageError(f"the layer has more than {LARGEST_HEADERS:,} bytes of headers")
        stream.skip_to(start + -(-size // BLOCK) * BLOCK)


def _header(stream: Stream) -> _Header | None:
    """The next header; None at the end: a block of zeros, or no block."""
    block = stream.read(BLOCK)
    if not block.strip(b"\0") and len(block) in (0, BLOCK):
        return None
    where = _where(stream)
    if len(block) < BLOCK:
        raise DamagedImageError(f"{where} is cut off")
    name, *numbers, checksum, kind, link, magic, major, minor, prefix, trailer = _HEADER.unpack(
        block
    )
    if _number(checksum, where) != sum(block) - sum(checksum) + 8 * ord(" "):
        raise DamagedImageError(f"{where} has another checksum")
    prefix, name, link = (field.partition(b"\0")[0] for field in (prefix, name, link))
    if prefix and (not magic.startswith(_USTAR) or trailer == _STAR):
        raise DamagedImageError(f"{where} is of an old format, and has a prefix")
    device = ""
    if kind in _DEVICES:
        known = magic.startswith((_USTAR, _GNU))
        numbered = [_number(each, where) if known else 0 for each in (major, minor)]
        device = f"{_DEVICES[kind]} {numbered[0]}:{numbered[1]}"
    mode, user, group, size, time = (_number(each, where) for each in numbers)
    path = prefix + b"/" + name if prefix else name
    return _Header(path, mode, user, group, size, time, kind, link, device)


def _member(
    header: _Header, pax: Mapping[str, str], name: bytes, link: bytes, stream: Stream
) -> Member:
    where = _where(stream)
    kind = _KINDS.get(header.type)
    if kind is None or any(key.startswith(SPARSE) for key in pax):
        what = "a sparse file" if kind or header.type == b"S" else f"type {header.type!r}"
        raise DamagedImageError(f"{where}: {what}, which no layer should have")
    # An empty value leaves the header's own.
    path = _text(name) or pax.get("path") or _text(header.name)
    if header.type == b"\0" and path.endswith("/"):
        kind = "directory"  # of tars before POSIX
    target = header.device or _text(link) or pax.get("linkpath") or _text(header.link)
    size = int(_value(pax, "size", _WHOLE, where) or header.size)
    if size < 0:
        raise DamagedImageError(f"{where}: a size of {size}")
    return Member(
        path,
        header.type,
        kind,
        header.mode & 0o7777,
        int(_value(pax, "uid", _WHOLE, where) or header.user),
        int(_value(pax, "gid", _WHOLE, where) or header.group),
        float(_value(pax, "mtime", _TIME, where) or header.time),
        size if kind == "file" and header.type != HARD_LINK else 0,
        target,
        tuple(
            (key.removeprefix(ATTRIBUTE), value.encode(errors="surrogateescape").hex())
            for key, value in sorted(pax.items())
            if key.startswith(ATTRIBUTE)
        ),
    )


def _records(data: bytes, stream: Stream) -> dict[str, str]:
    """The records of a pax header: ``LENGTH KEY=VALUE`` and a newline, LENGTH bytes in all."""
    found, at = {}, 0
    while at < len(data):
        length = _LENGTH.match(data, at)
        end = at + int(length[1]) if length else 0
        record = data[length.end() : end] if length else b""
        key, equals, value = record[:-1].partition(b"=")
        named = key in (b"path", b"linkpath", b"uname", b"gname")
        if not (key and equals and record.endswith(b"\n") and end <= len(data)) or b"\0" in (
            key + (value if named else b"")
        ):
            raise DamagedImageError(f"{_where(stream)}: damaged record {data[at : at + 80]!r}")
        found[_text(key)] = _text(value)
        at = end
    return found


def _value(pax: Mapping[str, str], key: str, form: re.Pattern[str], where: str) -> str:
    value = pax.get(key, "")
    if value and not form.fullmatch(value):
        raise DamagedImageError(f"{where}: {key}={value[:40]!r}")
    return value


def _number(field: bytes, where: str) -> int:
    """Octal digits among spaces and NULs; or with the highest bit, two's complement."""
    if field[0] & 0x80:
        bits = 8 * len(field) - 1
        value = int.from_bytes(field, "big") & (1 << bits) - 1
        value -= 1 << bits if field[0] & 0x40 else 0
    else:
        digits = field.strip(b" \0").partition(b"\0")[0]
        if digits.strip(b"01234567"):
            raise DamagedImageError(f"{where}: {field!r} is no number")
        value = int(digits or b"0", 8)
    if abs(value) >> 63:
        raise DamagedImageError(f"{where}: a number of more than 63 bits")
    return value


def _content(stream: Stream, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise DamagedImageError(f"{_where(stream)} is cut off")
    return data


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _where(stream: Stream) -> str:
    return f"the tar header before byte {stream.position:,}"
