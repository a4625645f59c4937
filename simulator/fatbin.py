"""CUDA fat binaries: the device code in an ELF file's sections, packed or not.

The layout is not specified.  It was found by inspection and checked against `cuobjdump --list-elf`
and `--list-ptx` with CUDA 12.8, 13.0 and 13.5.  In the sections `.nv_fatbin` and `__nv_relfatbin`,
little-endian:

- a region: u32 magic 0xBA55ED50, u16 version (1), u16 header size, u64 size of its entries;
  zeros may pad the space between regions; a region without entries is usual;
- an entry: u16 kind (1 PTX, 2 ELF, 8 intermediate code for link-time optimization),
  u16 version, u32 header size, u64 padded payload size, u32 payload size where it is compressed,
  u32 architecture at byte 28, u64 flags at byte 40, u64 size after decompression at byte 56;
- flags: bit 13 (0x2000) LZ4 block, bit 15 (0x8000) zstd frame, bit 20 `a` (sm_120a), bit 21 `f`
  (sm_120f).

nvcc writes zstd by default since 12.8 and LZ4 before that, and with `--compress-mode=speed`.  All
modes of CUDA 13.0 were read back and compared with `--compress-mode=none`.  Headers are never
compressed.  The architecture is not taken from the `e_flags` of the embedded ELF files: they are
equal for 120, 120a and 120f.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Literal

from simulator import MalformedElf
from simulator.selection import Capability, Code, Suffix, preferred

_REGION = struct.Struct("<IHHQ")
_REGION_MAGIC, _REGION_VERSION = 0xBA55ED50, 1
MAGIC = struct.pack("<I", _REGION_MAGIC)
"""The first bytes of a file that is a fat binary."""
_ENTRY = struct.Struct("<H2xIQI8xI8xQ8xQ")
_KINDS: dict[int, Literal["ptx", "elf"]] = {1: "ptx", 2: "elf"}
_KIND_LTO = 8
_SUFFIX_FLAGS = 1 << 20 | 1 << 21
_SUFFIXES: dict[int, Suffix] = {0: "", 1 << 20: "a", 1 << 21: "f"}
_COMPRESSED = 0xF000  # bits 12 and 14 were never met
_COMPRESSIONS: dict[int, Literal["", "lz4", "zstd"]] = {0: "", 1 << 13: "lz4", 1 << 15: "zstd"}
_CHUNK = 1 << 20
_LARGEST = 1 << 30
"""Bytes of an unpacked payload: far above any met; a damaged size must not take all memory."""


@dataclass(frozen=True, slots=True)
class FatbinEntry:
    """One image of device code, and where its payload is in the file."""

    code: Code
    offset: int
    stored: int
    """Bytes in the file."""
    size: int
    """Bytes after decompression; an uncompressed payload may be padded."""
    compression: Literal["", "lz4", "zstd"] = ""

    def payload(self, stream: IO[bytes]) -> bytes:
        """The ELF file or the PTX text; raises ``MalformedElf``."""
        stream.seek(self.offset)
        data = stream.read(self.stored)
        where = f"payload at byte {self.offset:#x}"
        if len(data) < self.stored:
            raise MalformedElf(f"{where}: the file ends before its {self.stored} bytes")
        if not self.compression:
            return data
        if self.size > _LARGEST:
            raise MalformedElf(f"{where}: {self.size} bytes unpacked are too many")
        import lz4.block
        from backports.zstd import ZstdDecompressor, ZstdError

        try:
            if self.compression == "lz4":
                found: bytes = lz4.block.decompress(data, uncompressed_size=self.size)
            else:
                found = ZstdDecompressor().decompress(data, self.size + 1)
        except (lz4.block.LZ4BlockError, ZstdError) as error:
            raise MalformedElf(f"{where}: damaged {self.compression}: {error}") from error
        if len(found) != self.size:
            raise MalformedElf(f"{where}: {len(found)} bytes unpacked instead of {self.size}")
        return found


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of a file that register the same kinds of code."""

    codes: tuple[Code, ...]
    """The code that each module registers, in file order."""
    sizes: tuple[int, ...]
    """Bytes in the file, by code, of all of them together."""
    count: int


@dataclass(frozen=True, slots=True)
class Region:
    """The code that a module registers with the driver: the same for several architectures."""

    offset: int
    """Where its header is in the file."""
    size: int
    """Bytes in the file, with its header."""
    entries: tuple[FatbinEntry, ...]


def regions(stream: IO[bytes], offset: int, end: int) -> Iterator[Region]:
    """The regions in the section between two bytes of the file; no payload is read.

    Raises ``MalformedElf``.
    """
    while (start := _after_zeros(stream, offset, end)) < end:
        where = f"fat binary region at byte {start:#x}"
        magic, version, header, size = _header(stream, _REGION, where, start, end)
        if magic != _REGION_MAGIC or version != _REGION_VERSION:
            raise MalformedElf(f"{where}: unknown magic {magic:#x} or version {version}")
        if header < _REGION.size:
            raise MalformedElf(f"{where}: its header has {header} bytes")
        offset = start + header + size
        if offset > end:
            raise MalformedElf(f"{where}: {size} bytes run past the section's end at {end:#x}")
        yield Region(start, offset - start, tuple(_entries(stream, start + header, offset)))


def taken(entries: Iterable[FatbinEntry], card: Capability) -> FatbinEntry | None:
    """The entry that the driver takes; None if the card can run none of them."""
    found = [*entries]
    code = preferred((each.code for each in found), card)
    return next((each for each in found if each.code == code), None)


def modules(found: Iterable[Region]) -> tuple[Modules, ...]:
    """The modules of a file, in the order of the first of each kind; empty ones are left out."""
    sizes: dict[tuple[Code, ...], tuple[int, ...]] = {}
    counts: Counter[tuple[Code, ...]] = Counter()
    for region in found:
        codes = tuple(entry.code for entry in region.entries)
        before = sizes.get(codes, (0,) * len(codes))
        stored = (entry.stored for entry in region.entries)
        sizes[codes] = tuple(map(sum, zip(before, stored, strict=True)))
        counts[codes] += 1
    return tuple(Modules(codes, sizes[codes], counts[codes]) for codes in sizes if codes)


def _after_zeros(stream: IO[bytes], offset: int, end: int) -> int:
    # Mostly there is no padding: begin with a few bytes, so that no payload is read for nothing.
    size = _REGION.size
    while offset < end:
        stream.seek(offset)
        chunk = stream.read(min(size, end - offset))
        rest = chunk.lstrip(b"\0")
        if rest or not chunk:
            return offset + len(chunk) - len(rest)
        offset += len(chunk)
        size = _CHUNK
    return end


def _entries(stream: IO[bytes], offset: int, end: int) -> Iterator[FatbinEntry]:
    while offset < end:
        where = f"fat binary entry at byte {offset:#x}"
        kind, header, padded, stored, arch, flags, size = _header(
            stream, _ENTRY, where, offset, end
        )
        if header < _ENTRY.size or padded == 0:
            raise MalformedElf(f"{where}: header of {header} bytes, payload of {padded}")
        payload = offset + header
        offset = payload + padded
        if offset > end:
            raise MalformedElf(f"{where}: {padded} bytes run past the region's end at {end:#x}")
        # Input of a later link: it runs nowhere, and cuobjdump does not list it either.
        if kind == _KIND_LTO:
            continue
        if kind not in _KINDS:
            raise MalformedElf(f"{where}: unknown kind {kind}")
        suffix = _SUFFIXES.get(flags & _SUFFIX_FLAGS)
        if suffix is None:
            raise MalformedElf(f"{where}: flags {flags:#x} say both a and f")
        compression = _COMPRESSIONS.get(flags & _COMPRESSED)
        if compression == "":
            stored = size = padded
        elif compression is None or not 0 < stored <= padded:
            raise MalformedElf(
                f"{where}: unknown compression: flags {flags:#x}, {stored} of {padded} bytes"
            )
        yield FatbinEntry(Code(_KINDS[kind], arch, suffix), payload, stored, size, compression)


def _header(
    stream: IO[bytes], layout: struct.Struct, where: str, offset: int, end: int
) -> tuple[int, ...]:
    stream.seek(offset)
    data = stream.read(layout.size)
    if offset + layout.size > end or len(data) < layout.size:
        raise MalformedElf(f"{where}: its header runs past {end:#x}")
    return layout.unpack(data)
