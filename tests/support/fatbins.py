"""CUDA fat binaries, byte by byte: entries and regions as nvcc writes them."""

from __future__ import annotations

import io
import struct

import lz4.block
from backports import zstd

PTX, ELF, LTO = 1, 2, 8
FLAG_A, FLAG_F = 1 << 20, 1 << 21
LZ4, ZSTD = 1 << 13, 1 << 15
AT, MAPPED = 0x400, 0x7000


def entry(
    kind: int, arch: int, flags: int = 0, payload: bytes = b"payload.", header: int = 64
) -> bytes:
    """One entry; with the flag LZ4 or ZSTD, its payload is compressed and padded to 8 bytes."""
    stored, size = 0, 0
    if flags & (LZ4 | ZSTD):
        size = len(payload)
        payload = (
            zstd.compress(payload)
            if flags & ZSTD
            else lz4.block.compress(payload, store_size=False)
        )
        stored = len(payload)
        payload = payload.ljust(-(-stored // 8) * 8, b"\0")
    head = struct.pack(
        "<HHIQI8xI8xQ8xQ",
        *(kind, 0x0101, header, len(payload), stored, arch, 0x11 | flags, size),
    )
    return head.ljust(header, b"\xee") + payload


def region(*entries: bytes, header: int = 16) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, header, len(body)).ljust(header, b"\xee") + body


def library(*regions: bytes, name: str = ".nv_fatbin", kind: int = 3) -> io.BytesIO:
    """A shared library whose fat binaries begin at the byte ``AT``, mapped at ``MAPPED``."""
    data = b"".join(regions)
    names = b"\0" + name.encode() + b"\0.shstrtab\0"
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 1, 1, 2, MAPPED, AT, len(data), 0, 0, 8, 0)
    at = AT + len(data)
    sections += struct.pack("<IIQQQQIIQQ", len(name) + 2, 3, 0, 0, at, len(names), 0, 0, 1, 0)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(kind, 62, 1, 0, 0, at + len(names), 0, 64, 56, 0, 64, 3, 2),
    )
    return io.BytesIO(header.ljust(AT, b"\0") + data + names + sections)
