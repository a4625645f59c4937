"""The headers, sections, segments and symbol tables of an ELF file.

Formats: System V gABI, chapters "ELF Header", "Sections", "Symbol Table" and "Program Header".
Cubins are ELF files, too.

pyelftools is not used: its sections and segments follow the numbers of a file without a check, and
an image's libraries are anybody's.  With it, 6 times the CPU time went into 200 libraries of
Debian, 20 times into the symbols of libstdc++, 8 times into the sections of cubins.  Here, tables
are checked to lie within the file, and memory does not grow with it: the 540 MB of libcublasLt take
0.03 s.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import IO, NamedTuple

CUDA = 190  # EM_CUDA
LOADED = ".nv_fatbin"
"""The section of fat binaries that a program registers with the driver."""
FATBINS = (LOADED, "__nv_relfatbin")  # the other one is input of the device linker
NOBITS = 8  # SHT_NOBITS: a size, and no bytes in the file
SYMTAB_SHNDX = 18
XINDEX, UNDEFINED = 0xFFFF, 0
FUNCTION, LOCAL, WEAK = 2, 0, 2  # STT_FUNC, STB_LOCAL, STB_WEAK
_BLOCK = 1 << 20
_LARGEST_HEADERS = 1 << 26
"""Bytes of the headers of a million sections."""
_LARGEST_TABLE = 1 << 28
"""Bytes of a table that is read at once: far above any met."""
# No run path or name is nearly as long; a table without NULs is not read as one string.
_LONGEST_STRING = 1 << 16


class MalformedElf(ValueError):  # noqa: N818 (what it is, not what went wrong)
    """An ELF file or its device code is truncated or damaged; the text says at which byte."""


class Section(NamedTuple):
    """A section of an ELF file."""

    name: str
    type: int
    """sh_type."""
    address: int
    """Virtual address of its first byte."""
    offset: int
    size: int
    """Bytes in the file; for NOBITS, bytes in memory."""
    link: int
    info: int


class Symbol(NamedTuple):
    """A row of a symbol table; the name is empty for some."""

    name: str
    type: int
    binding: int
    other: int
    section: int
    value: int
    size: int


class Segment(NamedTuple):
    """A part of the file that the loader maps, or that describes how to load the file."""

    type: int
    offset: int
    address: int
    size: int


class Elf:
    """The ELF file open in ``stream``, which must be seekable.

    Each function raises ``MalformedElf`` where the file is truncated or damaged.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self._size = stream.seek(0, os.SEEK_END)
        ident = self.bytes_at(0, 16, "ELF header")
        if not is_elf(ident) or ident[4] not in (1, 2) or ident[5] not in (1, 2):
            raise MalformedElf("byte 0x0: no ELF header")
        self._wide = ident[4] == 2
        self.order = "<" if ident[5] == 1 else ">"
        self.abi = ident[8]
        layout = self.layout("HHIQQQIHHHHHH", "HHIIIIIHHHHHH")
        header = layout.unpack(self.bytes_at(16, layout.size, "ELF header"))
        self.type: int = header[0]
        self.machine: int = header[1]
        self.flags: int = header[6]
        self._segments_at, self._sections_at = header[4:6]
        self._segment_counts, self._section_counts = header[8:10], header[10:]

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The sections by their numbers; the first one is empty, and has no name."""
        table, (step, count, names) = self._sections_at, self._section_counts
        if table == 0:
            return ()
        layout = self.layout("II8xQQQII16x", "II4x5I8x")
        if step != layout.size:
            raise MalformedElf(f"section headers at byte {table:#x}: {step} bytes each")
        first = layout.unpack(self.bytes_at(table, step, "section headers"))
        # gABI, "ELF header": large numbers are in the first section header.
        count, names = count or first[4], first[5] if names == XINDEX else names
        rows = list(layout.iter_unpack(self.bytes_at(table, count * step, "section headers")))
        if not rows:
            raise MalformedElf(f"section headers at byte {table:#x}: none")
        if names >= len(rows):
            raise MalformedElf(f"section names: section {names} of {len(rows)}")
        strings = self.table(Section("", *rows[names][1:])) if names else b"\0"
        found = (_string(strings, row[0] if names else 0, "section name") for row in rows[1:])
        return tuple(Section(name, *row[1:]) for name, row in zip(("", *found), rows, strict=True))

    def named(self, name: str) -> Section | None:
        """The first section of that name, or None."""
        return next((each for each in self.sections if each.name == name), None)

    def content(self, section: Section) -> bytes:
        """All bytes of a section; none of NOBITS."""
        return b"".join(self.blocks(section))

    def digest(self, section: Section) -> str:
        """sha256 (hex) of the bytes of a section."""
        found = hashlib.sha256()
        for block in self.blocks(section):
            found.update(block)
        return found.hexdigest()

    def blocks(self, section: Section) -> Iterator[bytes]:
        """The bytes of a section, a megabyte at a time."""
        left = 0 if section.type == NOBITS else section.size
        self.require(section.offset, left, f"section {section.name}")
        self.stream.seek(section.offset if left else 0)
        while left and (block := self.stream.read(min(left, _BLOCK))):
            left -= len(block)
            yield block

    def fatbins(self) -> Iterator[Section]:
        """The sections with fat binaries."""
        for section in self.sections:
            if section.name in FATBINS and section.type != NOBITS:
                self.require(section.offset, section.size, section.name)
                yield section

    def build_id(self) -> str:
        """The build id (hex) that the linker wrote; empty where there is none."""
        section = self.named(".note.gnu.build-id")
        if section is None or section.type == NOBITS:
            return ""
        # A note: sizes of name and description, type, name with padding, description.
        data = self.table(section)
        if len(data) < 12:
            raise MalformedElf(f"the build id has a note of {len(data)} bytes")
        name, size, _ = struct.unpack_from(f"{self.order}III", data)
        start = 12 + -(-name // 4) * 4
        return data[start : start + size].hex()

    def symbols(self, table: Section | None) -> Iterator[Symbol]:
        """The rows of a symbol table; none of None."""
        if table is None:
            return
        if not 0 < table.link < len(self.sections):
            raise MalformedElf(f"section {table.name}: its strings are in section {table.link}")
        yield from self.rows(self.table(table), self.table(self.sections[table.link]))

    def rows(self, data: bytes, strings: bytes) -> Iterator[Symbol]:
        """The rows of a symbol table, out of its bytes and its strings' bytes."""
        layout = self.layout("IBBHQQ", "IIIBBH")
        for row in layout.iter_unpack(data[: len(data) - len(data) % layout.size]):
            if self._wide:
                at, info, other, section, value, size = row
            else:
                at, value, size, info, other, section = row
            name = _string(strings, at, "symbol name") if at else ""
            yield Symbol(name, info & 0xF, info >> 4, other, section, value, size)

    @cached_property
    def segments(self) -> list[Segment]:
        """The loader's view: section headers may be stripped, and are not read for it."""
        table, (step, count) = self._segments_at, self._segment_counts
        layout = self.layout("I4xQQ8xQ16x", "III4xI12x")
        if count and step != layout.size:
            raise MalformedElf(f"program headers at byte {table:#x}: {step} bytes each")
        data = self.bytes_at(table, count * step, "program headers")
        found = (Segment(*row) for row in layout.iter_unpack(data))
        # Files of separate debug information keep the headers but have no contents.
        return [each for each in found if each.size]

    def string_at(self, what: str, offset: int, end: int) -> str:
        """The string at a byte of the file, which ends before another one."""
        self.require(offset, end - offset, what)
        self.stream.seek(offset)
        text, terminator, _ = self.stream.read(min(end - offset, _LONGEST_STRING)).partition(b"\0")
        if not terminator:
            raise MalformedElf(f"{what} at byte {offset:#x}: string without end")
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise MalformedElf(f"{what} at byte {offset:#x}: not UTF-8: {text[:80]!r}") from error

    def layout(self, wide: str, narrow: str) -> struct.Struct:
        """The layout of a structure in a file of 64 bits, or of 32."""
        return struct.Struct(self.order + (wide if self._wide else narrow))

    def table(self, section: Section) -> bytes:
        """The bytes of a section that is read at once."""
        if section.size > _LARGEST_TABLE:
            raise MalformedElf(f"section {section.name}: a table of {section.size} bytes")
        return self.content(section)

    def bytes_at(self, at: int, size: int, what: str) -> bytes:
        """So many bytes of the file's headers."""
        self.require(at, size, what)
        if size > _LARGEST_HEADERS:
            raise MalformedElf(f"{what} at byte {at:#x}: {size} bytes are too many")
        self.stream.seek(at)
        return self.stream.read(size)

    def require(self, at: int, size: int, what: str) -> None:
        """Raise ``MalformedElf`` unless the file has so many bytes there."""
        if size and at + size > self._size:
            raise MalformedElf(
                f"{what} at byte {at:#x}: {size} bytes run past the end of the file ({self._size})"
            )


def is_elf(head: bytes) -> bool:
    """Say whether a file that begins with `head` (4 bytes are enough) claims to be ELF."""
    return head.startswith(b"\x7fELF")


def _string(strings: bytes, at: int, what: str) -> str:
    end = strings.find(b"\0", at, at + _LONGEST_STRING)
    if end < 0:
        raise MalformedElf(f"{what} at byte {at:#x} of its table has no end")
    return strings[at:end].decode(errors="replace")
