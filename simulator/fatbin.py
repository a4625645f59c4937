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

from simulator.elf import MalformedElf

_REGION = struct.Struct("<IHHQ")
_REGION_MAGIC = 0xBA55ED50
MAGIC = struct.pack("<I", _REGION_MAGIC)
"""The first bytes of a file that is a fat binary."""
_REGION_VERSION = 1
_ENTRY = struct.Struct("<H2xIQI8xI8xQ8xQ")
_KINDS: dict[int, Literal["ptx", "elf"]] = {1: "ptx", 2: "elf"}
_KIND_LTO = 8
_FLAG_A = 1 << 20
_FLAG_F = 1 << 21
_COMPRESSIONS: dict[int, Literal["lz4", "zstd"]] = {1 << 13: "lz4", 1 << 15: "zstd"}
_COMPRESSED = 0xF000  # bits 12 and 14 were never met
_CHUNK = 1 << 20
_LARGEST = 1 << 30
"""Bytes of an unpacked payload: far above any met; a damaged size must not take all memory."""


@dataclass(frozen=True, slots=True)
class Code:
    """One image of device code in a fat binary; `arch` is 120 for compute capability 12.0."""

    kind: Literal["ptx", "elf"]
    arch: int
    suffix: Literal["", "a", "f"] = ""

    @classmethod
    def named(cls, name: str) -> Code:
        """The code with this ``name``: "sm_120a"."""
        prefix, _, rest = name.partition("_")
        suffix: Literal["", "a", "f"] = "a" if rest[-1] == "a" else "f" if rest[-1] == "f" else ""
        return cls("ptx" if prefix == "compute" else "elf", int(rest.rstrip("af")), suffix)

    @property
    def name(self) -> str:
        """The name that nvcc's `code=` has for it: "sm_120a" or, for PTX, "compute_120a"."""
        prefix = "compute" if self.kind == "ptx" else "sm"
        return f"{prefix}_{self.arch}{self.suffix}"


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
        return _unpacked(data, self, where) if self.compression else data


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
    while (offset := _after_zeros(stream, offset, end)) < end:
        start = offset
        first, offset = _region(stream, start, end)
        yield Region(start, offset - start, tuple(_entries(stream, first, offset)))


def modules(found: Iterable[Region]) -> tuple[Modules, ...]:
    """The modules of a file, in the order of the first of each kind; empty ones are left out."""
    sizes: dict[tuple[Code, ...], tuple[int, ...]] = {}
    counts: Counter[tuple[Code, ...]] = Counter()
    for region in found:
        codes = tuple(entry.code for entry in region.entries)
        stored = (entry.stored for entry in region.entries)
        sizes[codes] = tuple(
            map(sum, zip(sizes.get(codes, (0,) * len(codes)), stored, strict=True))
        )
        counts[codes] += 1
    return tuple(Modules(codes, sizes[codes], counts[codes]) for codes in sizes if codes)


def _unpacked(data: bytes, entry: FatbinEntry, where: str) -> bytes:
    import lz4.block
    from backports.zstd import ZstdDecompressor, ZstdError

    if entry.size > _LARGEST:
        raise MalformedElf(f"{where}: {entry.size} bytes unpacked are too many")
    try:
        if entry.compression == "lz4":
            found: bytes = lz4.block.decompress(data, uncompressed_size=entry.size)
        else:
            found = ZstdDecompressor().decompress(data, entry.size + 1)
    except (lz4.block.LZ4BlockError, ZstdError) as error:
        raise MalformedElf(f"{where}: damaged {entry.compression}: {error}") from error
    if len(found) != entry.size:
        raise MalformedElf(f"{where}: {len(found)} bytes unpacked instead of {entry.size}")
    return found


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


def _region(stream: IO[bytes], offset: int, end: int) -> tuple[int, int]:
    """Give the bounds of the entries of the region at `offset`."""
    where = f"fat binary region at byte {offset:#x}"
    magic, version, header, size = _unpack(stream, _REGION, where, offset, end)
    if magic != _REGION_MAGIC or version != _REGION_VERSION:
        raise MalformedElf(f"{where}: unknown magic {magic:#x} or version {version}")
    if header < _REGION.size:
        raise MalformedElf(f"{where}: its header has {header} bytes")
    first, last = offset + header, offset + header + size
    if last > end:
        raise MalformedElf(f"{where}: {size} bytes run past the section's end at {end:#x}")
    return first, last


def _entries(stream: IO[bytes], offset: int, end: int) -> Iterator[FatbinEntry]:
    while offset < end:
        where = f"fat binary entry at byte {offset:#x}"
        kind, header, padded, stored, arch, flags, size = _unpack(
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
        code = Code(_KINDS[kind], arch, _suffix(flags, where))
        if not flags & _COMPRESSED:
            yield FatbinEntry(code, payload, padded, padded)
            continue
        if flags & _COMPRESSED not in _COMPRESSIONS or not 0 < stored <= padded:
            raise MalformedElf(
                f"{where}: unknown compression: flags {flags:#x}, {stored} of {padded} bytes"
            )
        yield FatbinEntry(code, payload, stored, size, _COMPRESSIONS[flags & _COMPRESSED])


def _suffix(flags: int, where: str) -> Literal["", "a", "f"]:
    if flags & _FLAG_A and flags & _FLAG_F:
        raise MalformedElf(f"{where}: flags {flags:#x} say both a and f")
    return "a" if flags & _FLAG_A else "f" if flags & _FLAG_F else ""


def _unpack(
    stream: IO[bytes], layout: struct.Struct, where: str, offset: int, end: int
) -> tuple[int, ...]:
    stream.seek(offset)
    data = stream.read(layout.size)
    if offset + layout.size > end or len(data) < layout.size:
        raise MalformedElf(f"{where}: its header runs past {end:#x}")
    return layout.unpack(data)
