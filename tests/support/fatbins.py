"""CUDA fat binaries, byte by byte: entries and regions as nvcc writes them."""

from __future__ import annotations

import struct

PTX, ELF, LTO = 1, 2, 8
FLAG_A, FLAG_F = 1 << 20, 1 << 21


def entry(
    kind: int, arch: int, flags: int = 0, payload: bytes = b"payload.", header: int = 64
) -> bytes:
    head = struct.pack("<HHIQ12xI8xQ16x", kind, 0x0101, header, len(payload), arch, 0x11 | flags)
    return head.ljust(header, b"\xee") + payload


def region(*entries: bytes, header: int = 16) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, header, len(body)).ljust(header, b"\xee") + body
