"""How ELF files link: needed libraries, defined symbols and versions, device code.

Formats: System V gABI, chapter "Dynamic Section"; Linux Standard Base Core, "Symbol Versioning".
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO, Literal, NamedTuple

from simulator import fatbin
from simulator.elf import (
    CUDA,
    FUNCTION,
    LOADED,
    LOCAL,
    UNDEFINED,
    WEAK,
    Elf,
    MalformedElf,
    Section,
    Symbol,
    is_elf,
)
from simulator.fatbin import Code, Modules

MACHINES = {62: "x86-64", 3: "x86", 183: "aarch64", 40: "arm", 243: "riscv", CUDA: "cuda"}
Type = Literal["rel", "exec", "dyn", "core", "other"]
TYPES: Mapping[int, Type] = {1: "rel", 2: "exec", 3: "dyn", 4: "core"}

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3  # types of segments
_NULL, _NEEDED, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 0, 1, 5, 6, 10, 14, 15, 29
_VERDEF, _VERNEED = 0x6FFFFFFC, 0x6FFFFFFE  # the number after each is the tag of its length
_HIDDEN = 0x8000  # the flag of a version that is not the default
_MOST_VERSIONS = 1 << 16
# PATH_MAX: the kernel, too, refuses an interpreter path longer than this.
_LONGEST_INTERPRETER = 4096


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


class Function(NamedTuple):
    """A function of a symbol table: its name, and the virtual addresses from ``start`` on."""

    start: int
    end: int
    name: str


class _SymbolVersion(NamedTuple):
    """A symbol version: its number in the file, and the library that must define it."""

    number: int
    name: str
    library: str


def read(stream: BinaryIO) -> ElfFile | None:
    """How the file open in `stream` links, which must be seekable; its position is not kept.

    None when it is not an ELF file. Raises MalformedElf when it is a truncated or damaged one,
    and OSError when the stream itself fails.
    """
    elf = _opened(stream)
    return linking(elf) if elf else None


def read_symbols(stream: BinaryIO) -> Symbols:
    """Read the dynamic symbols of the file open in `stream`: `nm -D`, names without versions.

    Both sets are empty when the file is not ELF. Raises as `read` does.
    """
    elf = _opened(stream)
    named = [each for each in _dynamic_symbols(elf) if each.name] if elf else []
    return Symbols(
        frozenset(
            each.name for each in named if each.section != UNDEFINED and each.binding != LOCAL
        ),
        frozenset(
            each.name for each in named if each.section == UNDEFINED and each.binding != WEAK
        ),
    )


def _dynamic_symbols(elf: Elf) -> Iterator[Symbol]:
    """The rows of the dynamic symbol table, also of a file without section headers."""
    section = elf.named(".dynsym")
    return elf.symbols(section) if section else _Dynamic(elf).symbols()


def read_functions(stream: BinaryIO) -> list[Function]:
    """The functions of both symbol tables of the file open in `stream`, by their addresses.

    Only symbols with a size; empty as with `read_symbols`. Raises as `read` does.
    """
    elf = _opened(stream)
    tables = [elf.named(name) for name in (".symtab", ".dynsym")] if elf else []
    return sorted(
        {
            Function(each.value, each.value + each.size, each.name)
            for table in tables
            for each in (elf.symbols(table) if elf else ())
            if each.type == FUNCTION and each.size
        }
    )


def loaded_fatbins(stream: BinaryIO) -> list[Section]:
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
    for each in dynamic.needed_versions:
        libraries[each.library] = (*libraries.get(each.library, ()), each.name)
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
        versions_defined=tuple(each.name for each in dynamic.defined_versions),
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
    # Number 1 is the version of the file itself.
    defined = {each.number: each.name for each in dynamic.defined_versions if each.number != 1}
    names = {each.number: each.name for each in dynamic.needed_versions} | defined
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


def _opened(stream: BinaryIO) -> Elf | None:
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

    @cached_property
    def _values(self) -> Mapping[int, Sequence[int]]:
        """The values of the dynamic section by their tags."""
        found: dict[int, list[int]] = defaultdict(list)
        layout = self.elf.layout("QQ", "II")
        for each in [each for each in self.elf.segments if each.type == _DYNAMIC][-1:]:
            size = each.size - each.size % layout.size
            data = self.elf.bytes_at(each.offset, size, "dynamic section")
            for tag, value in layout.iter_unpack(data):
                if tag == _NULL:
                    break
                found[tag].append(value)
        return found

    def symbols(self) -> Iterator[Symbol]:
        """The rows of the symbol table.

        The dynamic section does not tell where it ends: linkers put its strings right behind it.
        """
        places = [next(iter(self._values.get(tag, ())), 0) for tag in (_SYMTAB, _STRTAB)]
        size = next(iter(self._values.get(_STRSZ, ())), 0)
        if not places[0] or places[1] <= places[0]:
            return iter(())
        start, end = (self._file_offset(place) for place in places)
        rows = self.elf.bytes_at(start, end - start, "dynamic symbols")
        return self.elf.rows(rows, self.elf.bytes_at(end, size, "dynamic strings"))

    def strings(self, tag: int) -> Iterator[str]:
        for offset in self._values.get(tag, ()):
            yield self._string(offset)

    def _string(self, offset: int) -> str:
        size = next(iter(self._values.get(_STRSZ, ())), 0)
        if offset >= size:
            raise MalformedElf(f"dynamic strings: string {offset:#x} of a table of {size} bytes")
        start = self._file_offset(next(iter(self._values.get(_STRTAB, ())), 0))
        return self.elf.string_at("dynamic strings", start + offset, start + size)

    @cached_property
    def needed_versions(self) -> list[_SymbolVersion]:
        """Verneed: version, count, file, aux, next; Vernaux: hash, flags, number, name, next."""
        return [
            _SymbolVersion(number, self._string(name), self._string(need[2]))
            for at, need in self._versions(_VERNEED, "HHIII")
            for _, (_, _, number, name, _) in self._linked(at + need[3], need[1], "IHHII")
        ]

    @cached_property
    def defined_versions(self) -> list[_SymbolVersion]:
        """Verdef: version, flags, number, count, hash, aux, next; Verdaux: name, next.

        Only the first name is the version's own; its predecessors' names follow.
        """
        return [
            _SymbolVersion(definition[2], self._string(name), "")
            for at, definition in self._versions(_VERDEF, "HHHHIII")
            for _, (name, _) in self._linked(at + definition[5], 1, "II")
        ]

    def _versions(self, tag: int, form: str) -> Iterator[tuple[int, tuple[int, ...]]]:
        for address in self._values.get(tag, ())[:1]:
            count = next(iter(self._values.get(tag + 1, ())), 0)
            yield from self._linked(self._file_offset(address), count, form)

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
