"""The sections of an ELF file, their bytes, its build id and its dynamic symbols with versions.

Formats: System V gABI, chapters "Sections" and "Symbol Table"; Linux Standard Base Core, "Symbol
Versioning".  Cubins are ELF files, too.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import IO

from builder.tools.elf import MalformedElf, is_elf

NOBITS = 8  # SHT_NOBITS: a size, and no bytes in the file
_XINDEX, _UNDEFINED = 0xFFFF, 0
_WEAK = 2  # STB_WEAK
_HIDDEN = 0x8000  # the flag of a version that is not the default
_BLOCK = 1 << 20
_LARGEST_TABLE = 1 << 28
"""Bytes of a table that is read at once: far above any met."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an ELF file."""

    name: str
    type: int
    """sh_type."""
    offset: int
    size: int
    """Bytes; of NOBITS those in memory."""
    link: int
    info: int


class ElfSections:
    """The sections of the ELF file open in ``stream``, which must be seekable.

    ``start`` and ``size`` are its place, where it is a part of the stream, such as a member of an
    archive; all offsets are those in the file.
    Each function raises ``MalformedElf`` where the file is truncated or damaged.
    """

    def __init__(self, stream: IO[bytes], start: int = 0, size: int | None = None) -> None:
        self._stream = stream
        self._start = start
        self._size = stream.seek(0, os.SEEK_END) - start if size is None else size
        ident = self._bytes(0, 16, "ELF header")
        if not is_elf(ident) or ident[4] not in (1, 2) or ident[5] not in (1, 2):
            raise MalformedElf("byte 0x0: no ELF header")
        self._wide = ident[4] == 2
        self._order = "<" if ident[5] == 1 else ">"

    @cached_property
    def all(self) -> tuple[Section, ...]:
        """The sections in the order of their headers, without the empty first one."""
        header = self._unpack("HIQQQIHHHHHH" if self._wide else "HIIIIIHHHHHH", 18, "ELF header")
        table, (step, count, names) = header[4], header[-3:]
        if table == 0:
            return ()
        layout = struct.Struct(self._order + ("IIQQQQIIQQ" if self._wide else "10I"))
        if step != layout.size:
            raise MalformedElf(f"section headers at byte {table:#x}: {step} bytes each")
        first = layout.unpack(self._bytes(table, step, "section header"))
        # gABI, "ELF header": large numbers are in the first section header.
        count, names = count or first[5], first[6] if names == _XINDEX else names
        rows = list(layout.iter_unpack(self._bytes(table, count * step, "section headers")))
        if names >= len(rows):
            raise MalformedElf(f"section names: section {names} of {len(rows)}")
        strings = self._table(_section(rows[names], ""))
        return tuple(_section(row, _string(strings, row[0], "section name")) for row in rows[1:])

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
        self._require(section.offset, left, f"section {section.name}")
        self._stream.seek(self._start + section.offset if left else 0)
        while left and (block := self._stream.read(min(left, _BLOCK))):
            left -= len(block)
            yield block

    def named(self, name: str) -> Section | None:
        """The first section of that name, or None."""
        return next((each for each in self.all if each.name == name), None)

    def build_id(self) -> str:
        """The build id (hex) that the linker wrote; empty where there is none."""
        section = self.named(".note.gnu.build-id")
        if section is None or section.type == NOBITS:
            return ""
        # A note: sizes of name and description, type, name with padding, description.
        data = self._table(section)
        if len(data) < 12:
            raise MalformedElf(f"the build id has a note of {len(data)} bytes")
        name, size, _ = struct.unpack_from(f"{self._order}III", data)
        start = 12 + -(-name // 4) * 4
        return data[start : start + size].hex()

    def symbols(self) -> frozenset[str]:
        """The dynamic symbols with their versions: ``free@GLIBC_2.2.5``.

        ``U `` is before undefined ones, ``w `` before undefined ones that may be missing.
        """
        table = self.named(".dynsym")
        if table is None or table.type == NOBITS:
            return frozenset()
        strings = self._table(self._linked_section(table))
        versions = self._symbol_versions()
        found = set()
        for number, (name, bind, place) in enumerate(self._rows(table)):
            if name == 0:
                continue
            version = versions[number] if number < len(versions) else ""
            mark = "" if place != _UNDEFINED else "w " if bind == _WEAK else "U "
            text = _string(strings, name, "symbol name")
            # A version that the file defines is a symbol, too.
            found.add(f"{mark}{text}@{version}" if version not in ("", text) else f"{mark}{text}")
        return frozenset(found)

    def _rows(self, table: Section) -> Iterator[tuple[int, int, int]]:
        """Offset of the name, binding and section of each symbol."""
        layout = struct.Struct(self._order + ("IBBHQQ" if self._wide else "IIIBBH"))
        data = self._table(table)
        for row in layout.iter_unpack(data[: len(data) - len(data) % layout.size]):
            name, info, place = (row[0], row[1], row[3]) if self._wide else (row[0], row[3], row[5])
            yield name, info >> 4, place

    def _symbol_versions(self) -> list[str]:
        """The version of each dynamic symbol by its number; empty: none."""
        section = self.named(".gnu.version")
        if section is None or section.type == NOBITS:
            return []
        try:
            names = {**self._needed_versions(), **self._defined_versions()}
        except struct.error as error:
            raise MalformedElf(f"symbol versions: {error}") from error
        data = self._table(section)
        numbers = struct.iter_unpack(f"{self._order}H", data[: len(data) // 2 * 2])
        return [names.get(number & ~_HIDDEN, "") for (number,) in numbers]

    def _needed_versions(self) -> dict[int, str]:
        """By their numbers; Verneed has its aux and next at bytes 8 and 12, Vernaux its number,
        name and next at 6, 8 and 12."""
        data, strings = self._with_strings(".gnu.version_r")
        return {
            self._at("H", data, aux + 6): _string(strings, self._at("I", data, aux + 8), "version")
            for need in self._linked(data, 0, 12)
            for aux in self._linked(data, need + self._at("I", data, need + 8), 12)
        }

    def _defined_versions(self) -> dict[int, str]:
        """By their numbers; Verdef has its number, aux and next at bytes 4, 12 and 16, Verdaux its
        name at 0.  Only the first name is the version's own; number 1 is that of the file."""
        data, strings = self._with_strings(".gnu.version_d")
        found = {}
        for definition in self._linked(data, 0, 16):
            name = self._at("I", data, definition + self._at("I", data, definition + 12))
            found[self._at("H", data, definition + 4)] = _string(strings, name, "version")
        found.pop(1, None)
        return found

    def _with_strings(self, name: str) -> tuple[bytes, bytes]:
        """A table and the strings that it is linked with; empty where there is no such table."""
        section = self.named(name)
        if section is None or section.type == NOBITS:
            return b"", b""
        return self._table(section), self._table(self._linked_section(section))

    def _linked_section(self, section: Section) -> Section:
        if not 0 < section.link <= len(self.all):
            raise MalformedElf(f"section {section.name}: its strings are in section {section.link}")
        return self.all[section.link - 1]  # without the empty first one

    def _linked(self, data: bytes, at: int, following: int) -> Iterator[int]:
        """The offsets of structures that each have the distance to the next one."""
        while data:
            yield at
            step = self._at("I", data, at + following)
            if step == 0:
                return
            at += step

    def _at(self, form: str, data: bytes, at: int) -> int:
        (found,) = struct.unpack_from(f"{self._order}{form}", data, at)
        return int(found)

    def _table(self, section: Section) -> bytes:
        if section.size > _LARGEST_TABLE:
            raise MalformedElf(f"section {section.name}: a table of {section.size} bytes")
        return self.content(section)

    def _unpack(self, form: str, at: int, what: str) -> tuple[int, ...]:
        layout = struct.Struct(self._order + form)
        return layout.unpack(self._bytes(at, layout.size, what))

    def _bytes(self, at: int, size: int, what: str) -> bytes:
        self._require(at, size, what)
        self._stream.seek(self._start + at)
        return self._stream.read(size)

    def _require(self, at: int, size: int, what: str) -> None:
        if size and at + size > self._size:
            raise MalformedElf(
                f"{what} at byte {at:#x}: {size} bytes run past the end of the file ({self._size})"
            )


def _section(row: tuple[int, ...], name: str) -> Section:
    _, kind, _, _, offset, size, link, info, _, _ = row
    return Section(name, kind, offset, size, link, info)


def _string(strings: bytes, at: int, what: str) -> str:
    end = strings.find(b"\0", at)
    if end < 0:
        raise MalformedElf(f"{what} at byte {at:#x} of its table has no end")
    return strings[at:end].decode(errors="replace")
