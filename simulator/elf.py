"""ELF files: headers, sections, segments, symbol tables; how they link; their device code.

Formats: System V gABI, chapters "ELF Header", "Sections", "Symbol Table", "Program Header" and
"Dynamic Section"; Linux Standard Base Core, "Symbol Versioning".  Cubins are ELF files, too.

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
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Literal, NamedTuple

from simulator import MalformedElf, fatbin
from simulator.fatbin import Modules
from simulator.selection import Code

CUDA = 190  # EM_CUDA
MACHINES = {62: "x86-64", 3: "x86", 183: "aarch64", 40: "arm", 243: "riscv", CUDA: "cuda"}
Type = Literal["rel", "exec", "dyn", "core", "other"]
TYPES: Mapping[int, Type] = {1: "rel", 2: "exec", 3: "dyn", 4: "core"}
LOADED = ".nv_fatbin"
"""The section of fat binaries that a program registers with the driver."""
FATBINS = (LOADED, "__nv_relfatbin")  # the other one is input of the device linker
NOBITS = 8  # SHT_NOBITS: a size, and no bytes in the file
XINDEX, UNDEFINED = 0xFFFF, 0
FUNCTION, LOCAL, WEAK = 2, 0, 2  # STT_FUNC, STB_LOCAL, STB_WEAK

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3  # types of segments
_NULL, _NEEDED, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 0, 1, 5, 6, 10, 14, 15, 29
_VERDEF, _VERNEED = 0x6FFFFFFC, 0x6FFFFFFE  # the number after each is the tag of its length
_HIDDEN = 0x8000  # the flag of a version that is not the default

_BLOCK = 1 << 20
# Bounds in bytes: the headers of a million sections; a table that is read at once, far above any
# met; a name; a path, as the kernel has it (PATH_MAX).
_LARGEST_HEADERS = 1 << 26
_LARGEST_TABLE = 1 << 28
_LONGEST_STRING = 1 << 16
_LONGEST_INTERPRETER = 4096
_MOST_VERSIONS = 1 << 16


class Section(NamedTuple):
    """A section of an ELF file."""

    name: str
    type: int
    address: int  # virtual, of its first byte
    offset: int
    size: int  # bytes in the file; for NOBITS, bytes in memory
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
        if names >= len(rows):
            raise MalformedElf(f"section names: section {names} of {len(rows)}")
        strings = self.table(Section("", *rows[names][1:])) if names else b"\0"
        found = (_string(strings, row[0] if names else 0, "section name") for row in rows[1:])
        return tuple(Section(name, *row[1:]) for name, row in zip(("", *found), rows, strict=True))

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

    def named(self, name: str) -> Section | None:
        """The first section of that name, or None."""
        return next((each for each in self.sections if each.name == name), None)

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

    def content(self, section: Section) -> bytes:
        """All bytes of a section; none of NOBITS."""
        return b"".join(self.blocks(section))

    def table(self, section: Section) -> bytes:
        """The bytes of a section that is read at once."""
        if section.size > _LARGEST_TABLE:
            raise MalformedElf(f"section {section.name}: a table of {section.size} bytes")
        return self.content(section)

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


@dataclass(frozen=True, slots=True)
class ElfFile:
    """How one ELF file links, and its device code.

    `machine` is a name of `MACHINES`, or the number of e_machine. `type` is "other" outside of the
    four of the gABI.
    `runpath` (DT_RUNPATH) and `rpath` (DT_RPATH) are split at the colons and otherwise as
    stored: `$ORIGIN` is not expanded. `modules` is empty for a file without section headers,
    where fat binaries cannot be found.
    """

    machine: str
    type: Type
    soname: str | None
    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    rpath: tuple[str, ...]
    interpreter: str | None
    modules: tuple[Modules, ...]
    versions_needed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """By library (its DT_NEEDED name): the symbol versions that it must define."""
    versions_defined: tuple[str, ...] = ()
    zeros: int = 0
    """Bytes between its fat binaries that are zeros: removed device code, or alignment."""

    @property
    def code(self) -> tuple[Code, ...]:
        """The device code of every module."""
        return tuple(code for each in self.modules for code in each.codes * each.count)


class Symbols(NamedTuple):
    """The names of a dynamic symbol table, without versions."""

    defined: frozenset[str] = frozenset()
    """Names that other files can use."""
    undefined: frozenset[str] = frozenset()
    """Names that other files must define; weak names, which may be missing, are left out."""


def read(stream: IO[bytes]) -> ElfFile | None:
    """How the file open in `stream` links, which must be seekable; its position is not kept.

    None when it is not an ELF file. Raises MalformedElf when it is a truncated or damaged one,
    and OSError when the stream itself fails.
    """
    elf = _opened(stream)
    return linking(elf) if elf else None


def read_symbols(stream: IO[bytes]) -> Symbols:
    """Read the dynamic symbols of the file open in `stream`: `nm -D`, names without versions.

    Both sets are empty when the file is not ELF. Raises as `read` does.
    """
    elf = _opened(stream)
    if elf is None:
        return Symbols()
    section = elf.named(".dynsym")
    rows = elf.symbols(section) if section else _Dynamic(elf).symbols()
    defined, undefined = set(), set()
    for each in rows:
        if each.name and each.section != UNDEFINED and each.binding != LOCAL:
            defined.add(each.name)
        elif each.name and each.section == UNDEFINED and each.binding != WEAK:
            undefined.add(each.name)
    return Symbols(frozenset(defined), frozenset(undefined))


def read_functions(stream: IO[bytes]) -> list[tuple[int, int, str]]:
    """The functions of both symbol tables of the file open in `stream`, by their addresses.

    A row has the first virtual address, the end, and the name.  Only symbols with a size; empty as
    with `read_symbols`. Raises as `read` does.
    """
    elf = _opened(stream)
    tables = [elf.symbols(elf.named(name)) for name in (".symtab", ".dynsym")] if elf else []
    return sorted(
        {
            (each.value, each.value + each.size, each.name)
            for table in tables
            for each in table
            if each.type == FUNCTION and each.size
        }
    )


def loaded_fatbins(stream: IO[bytes]) -> list[Section]:
    """The sections whose fat binaries the program registers when it is loaded.

    Empty when the file is not ELF, or is an object file.  Raises as `read` does.
    """
    elf = _opened(stream)
    if elf is None or TYPES.get(elf.type) == "rel":
        return []
    return [each for each in elf.fatbins() if each.name == LOADED]


def linking(elf: Elf) -> ElfFile:
    """How the file links, and its device code."""
    dynamic = _Dynamic(elf)
    libraries: dict[str, tuple[str, ...]] = {}
    for _, name, library in dynamic.needed_versions:
        libraries[library] = (*libraries.get(library, ()), name)
    sections = [*elf.fatbins()]
    regions = [
        region
        for each in sections
        for region in fatbin.regions(elf.stream, each.offset, each.offset + each.size)
    ]
    return ElfFile(
        machine=MACHINES.get(elf.machine, str(elf.machine)),
        type=TYPES.get(elf.type, "other"),
        soname=next(dynamic.strings(_SONAME), None),
        needed=tuple(dynamic.strings(_NEEDED)),
        runpath=_search_path(dynamic.strings(_RUNPATH)),
        rpath=_search_path(dynamic.strings(_RPATH)),
        interpreter=_interpreter(elf),
        modules=fatbin.modules(regions),
        versions_needed=tuple(libraries.items()),
        versions_defined=tuple(name for _, name in dynamic.defined_versions),
        zeros=sum(each.size for each in sections) - sum(each.size for each in regions),
    )


def versioned_symbols(elf: Elf) -> frozenset[str]:
    """The dynamic symbols with their versions: ``free@GLIBC_2.2.5``.

    ``U `` is before undefined symbols, ``w `` before undefined symbols that may be missing.
    """
    dynamic = _Dynamic(elf)
    section = elf.named(".gnu.version")
    data = elf.table(section) if section else b""
    numbers = [at for (at,) in struct.iter_unpack(f"{elf.order}H", data[: len(data) // 2 * 2])]
    names = {number: name for number, name, _ in dynamic.needed_versions}
    # Number 1 is the version of the file itself.
    names |= {number: name for number, name in dynamic.defined_versions if number != 1}
    found = set()
    for number, each in enumerate(elf.symbols(elf.named(".dynsym"))):
        if each.name:
            version = names.get(numbers[number] & ~_HIDDEN, "") if number < len(numbers) else ""
            mark = "w " if each.binding == WEAK else "U "
            mark = mark if each.section == UNDEFINED else ""
            # A version that the file defines is a symbol, too.
            suffix = f"@{version}" if version not in ("", each.name) else ""
            found.add(f"{mark}{each.name}{suffix}")
    return frozenset(found)


def _opened(stream: IO[bytes]) -> Elf | None:
    stream.seek(0)
    return Elf(stream) if is_elf(stream.read(4)) else None


def _search_path(values: Iterable[str]) -> tuple[str, ...]:
    # An empty string, left behind by tools that edit files in place, is no path to the loader;
    # an empty element of a longer one means the working directory and must stay visible.
    return tuple(part for value in values if value for part in value.split(":"))


def _interpreter(elf: Elf) -> str | None:
    found = None
    for each in elf.segments:
        if each.type == _INTERPRETER:
            if each.size > _LONGEST_INTERPRETER:
                where = f"interpreter at byte {each.offset:#x}"
                raise MalformedElf(f"{where}: {each.size} bytes are too many")
            found = elf.string_at("interpreter", each.offset, each.offset + each.size)
    return found


class _Dynamic:
    """The dynamic section, and its strings and versions."""

    def __init__(self, elf: Elf) -> None:
        self.elf = elf
        self._links = 0
        self._values: dict[int, list[int]] = defaultdict(list)
        layout = elf.layout("QQ", "II")
        for each in [each for each in elf.segments if each.type == _DYNAMIC][-1:]:
            size = each.size - each.size % layout.size
            for tag, value in layout.iter_unpack(
                elf.bytes_at(each.offset, size, "dynamic section")
            ):
                if tag == _NULL:
                    break
                self._values[tag].append(value)

    def _value(self, tag: int) -> int:
        """The first value of a tag; 0 where there is none."""
        return next(iter(self._values.get(tag, ())), 0)

    def symbols(self) -> Iterator[Symbol]:
        """The rows of the symbol table.

        The dynamic section does not tell where it ends: linkers put its strings right behind it.
        """
        if not 0 < self._value(_SYMTAB) < self._value(_STRTAB):
            return iter(())
        start, end = (self._file_offset(self._value(tag)) for tag in (_SYMTAB, _STRTAB))
        rows = self.elf.bytes_at(start, end - start, "dynamic symbols")
        return self.elf.rows(rows, self.elf.bytes_at(end, self._value(_STRSZ), "dynamic strings"))

    def strings(self, tag: int) -> Iterator[str]:
        return map(self._string, self._values.get(tag, ()))

    def _string(self, offset: int) -> str:
        size = self._value(_STRSZ)
        if offset >= size:
            raise MalformedElf(f"dynamic strings: string {offset:#x} of a table of {size} bytes")
        start = self._file_offset(self._value(_STRTAB))
        return self.elf.string_at("dynamic strings", start + offset, start + size)

    @cached_property
    def needed_versions(self) -> list[tuple[int, str, str]]:
        """The number, the name and the library of each version that the file needs.

        Verneed: version, count, file, aux, next; Vernaux: hash, flags, number, name, next.
        """
        return [
            (number, self._string(name), self._string(need[2]))
            for at, need in self._versions(_VERNEED, "HHIII")
            for _, (_, _, number, name, _) in self._linked(at + need[3], need[1], "IHHII")
        ]

    @cached_property
    def defined_versions(self) -> list[tuple[int, str]]:
        """The number and the name of each version that the file defines.

        Verdef: version, flags, number, count, hash, aux, next; Verdaux: name, next.
        Only the first name is the version's own; its predecessors' names follow.
        """
        return [
            (definition[2], self._string(name))
            for at, definition in self._versions(_VERDEF, "HHHHIII")
            for _, (name, _) in self._linked(at + definition[5], 1, "II")
        ]

    def _versions(self, tag: int, form: str) -> Iterator[tuple[int, tuple[int, ...]]]:
        for address in self._values.get(tag, ())[:1]:
            yield from self._linked(self._file_offset(address), self._value(tag + 1), form)

    def _linked(self, at: int, count: int, form: str) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The structures of a list with their offsets; the last field is the way to the next."""
        layout = struct.Struct(self.elf.order + form)
        for _ in range(count):
            self._links += 1
            if self._links > _MOST_VERSIONS:
                raise MalformedElf(f"symbol versions at byte {at:#x}: more than {_MOST_VERSIONS}")
            row = layout.unpack(self.elf.bytes_at(at, layout.size, "symbol versions"))
            yield at, row
            if row[-1] == 0:
                return
            at += row[-1]

    def _file_offset(self, address: int) -> int:
        for segment in self.elf.segments:
            if segment.type == _LOAD and 0 <= address - segment.address < segment.size:
                return segment.offset + address - segment.address
        raise MalformedElf(f"dynamic section: address {address:#x} is not loaded from the file")
