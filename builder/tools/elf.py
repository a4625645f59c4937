"""ELF files: how they link, and which device code their CUDA fat binaries hold.

Only headers and strings are read, by seeking: memory does not grow with the file, and a library of
540 MB with 5,700 images takes 0.2 s.  ELF is specified in the System V gABI.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, Literal, NamedTuple

from elftools.common.exceptions import ELFError
from elftools.common.utils import struct_parse
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from builder.tools import fatbin
from builder.tools.fatbin import Code, MalformedFatbinError

_MACHINES = {"EM_X86_64": "x86-64", "EM_386": "x86", "EM_AARCH64": "aarch64"}
_TYPES: dict[object, Literal["rel", "exec", "dyn", "core"]] = {
    "ET_REL": "rel",
    "ET_EXEC": "exec",
    "ET_DYN": "dyn",
    "ET_CORE": "core",
}

# Far above any run path met; it keeps a string table without NULs from being read as one string.
_LONGEST_STRING = 1 << 16
# PATH_MAX: the kernel, too, refuses an interpreter path longer than this.
_LONGEST_INTERPRETER = 4096


class MalformedElf(ValueError):  # noqa: N818 (what it is, not what went wrong)
    """An ELF file is truncated or damaged; the text says where (byte offset) and how."""


@dataclass(frozen=True, slots=True)
class ElfFile:
    """How one ELF file links, and its device code.

    `machine` is "x86-64", "aarch64", "x86", or the ELF constant in lower case without `EM_`
    ("riscv"; a number when it has no name). `type` is "other" outside of the four of the gABI.
    `runpath` (DT_RUNPATH) and `rpath` (DT_RPATH) are split at the colons and otherwise as
    stored: `$ORIGIN` is not expanded. `code` has every image in file order, with duplicates;
    it is empty for a file without section headers, where fat binaries cannot be found.
    """

    machine: str
    type: Literal["rel", "exec", "dyn", "core", "other"]
    soname: str | None
    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    rpath: tuple[str, ...]
    interpreter: str | None
    code: tuple[Code, ...]
    versions_needed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """By library (its DT_NEEDED name): the symbol versions that it must define."""
    versions_defined: tuple[str, ...] = ()


class Symbols(NamedTuple):
    """The names of a dynamic symbol table, without versions."""

    defined: frozenset[str] = frozenset()
    """What other files can use of this one."""
    undefined: frozenset[str] = frozenset()
    """What other files must define for this one; weak names, which may be missing, are left out."""


class Function(NamedTuple):
    """A function of a symbol table: its name, and the virtual addresses from ``start`` on."""

    start: int
    end: int
    name: str


class FatbinSection(NamedTuple):
    """A section with fat binaries that is loaded with the file."""

    offset: int
    size: int
    address: int
    """Virtual address of its first byte."""


@dataclass(frozen=True, slots=True)
class _Dynamic:
    """The dynamic section: values by tag, and its string table."""

    values: Mapping[str, tuple[int, ...]]
    strings_at: int = 0
    strings_size: int = 0

    def string(self, elf: ELFFile, what: str, offset: int) -> str:
        if offset >= self.strings_size:
            raise MalformedElf(
                f"{what}: string {offset:#x} of a table of {self.strings_size} bytes"
            )
        return _string(elf, what, self.strings_at + offset, self.strings_at + self.strings_size)

    def strings(self, elf: ELFFile, tag: str) -> list[str]:
        return [self.string(elf, tag, offset) for offset in self.values.get(tag, ())]

    def number(self, tag: str) -> int:
        return next(iter(self.values.get(tag, ())), 0)


def is_elf(head: bytes) -> bool:
    """Say whether a file that begins with `head` (4 bytes are enough) claims to be ELF."""
    return head.startswith(b"\x7fELF")


def read(stream: BinaryIO) -> ElfFile | None:
    """Read the file open in `stream`, which must be seekable; its position is not kept.

    None when it is not an ELF file. Raises MalformedElf when it is a truncated or damaged one,
    and OSError when the stream itself fails.
    """
    with _opened(stream) as elf:
        if elf is None:
            return None
        interpreter, dynamic, loaded = _segments(elf)
        return ElfFile(
            machine=_machine(elf["e_machine"]),
            type=_TYPES.get(elf["e_type"], "other"),
            soname=next(iter(dynamic.strings(elf, "DT_SONAME")), None),
            needed=tuple(dynamic.strings(elf, "DT_NEEDED")),
            runpath=_search_path(dynamic.strings(elf, "DT_RUNPATH")),
            rpath=_search_path(dynamic.strings(elf, "DT_RPATH")),
            interpreter=interpreter,
            code=_code(elf),
            versions_needed=_versions_needed(elf, dynamic, loaded),
            versions_defined=_versions_defined(elf, dynamic, loaded),
        )


def read_symbols(stream: BinaryIO) -> Symbols:
    """Read the dynamic symbols of the file open in `stream`: `nm -D`, names without versions.

    Both sets are empty when the file is not ELF or has no section headers. Raises as `read` does.
    """
    with _opened(stream) as elf:
        table = elf.get_section_by_name(".dynsym") if elf else None
        if elf is None or not isinstance(table, SymbolTableSection):
            return Symbols()
        _check_extent(elf, "dynamic symbols", table["sh_offset"], table["sh_size"])
        named = [symbol for symbol in table.iter_symbols() if symbol.name]
        return Symbols(
            frozenset(each.name for each in named if each["st_shndx"] != "SHN_UNDEF"),
            frozenset(
                each.name
                for each in named
                if each["st_shndx"] == "SHN_UNDEF" and each["st_info"]["bind"] != "STB_WEAK"
            ),
        )


def read_functions(stream: BinaryIO) -> list[Function]:
    """The functions of both symbol tables of the file open in `stream`, by their addresses.

    Those of a size only; empty as with `read_symbols`. Raises as `read` does.
    """
    found: set[Function] = set()
    with _opened(stream) as elf:
        tables = [elf.get_section_by_name(name) for name in (".symtab", ".dynsym")] if elf else []
        for table in tables:
            if elf is not None and isinstance(table, SymbolTableSection):
                _check_extent(elf, "symbols", table["sh_offset"], table["sh_size"])
                found |= {
                    Function(each["st_value"], each["st_value"] + each["st_size"], each.name)
                    for each in table.iter_symbols()
                    if each["st_info"]["type"] == "STT_FUNC" and each["st_size"]
                }
    return sorted(found)


def loaded_fatbins(stream: BinaryIO) -> list[FatbinSection]:
    """The sections whose fat binaries the program registers when it is loaded.

    Empty when the file is not ELF, or is an object file.  Raises as `read` does.
    """
    with _opened(stream) as elf:
        if elf is None or elf["e_type"] == "ET_REL":
            return []
        return [
            FatbinSection(section["sh_offset"], section["sh_size"], section["sh_addr"])
            for name, section in _fatbin_sections(elf)
            if name == fatbin.LOADED
        ]


@contextmanager
def _opened(stream: IO[bytes]) -> Iterator[ELFFile | None]:
    stream.seek(0)
    try:
        yield ELFFile(stream) if is_elf(stream.read(4)) else None
    except ELFError as error:
        raise MalformedElf(f"damaged ELF header: {error}") from error


def _machine(value: object) -> str:
    # pyelftools gives the constant's name, or the bare number when it knows none.
    name = str(value)
    return _MACHINES.get(name, name.removeprefix("EM_").lower())


def _search_path(values: list[str]) -> tuple[str, ...]:
    # An empty string, left behind by tools that edit files in place, is no path to the loader;
    # an empty element of a longer one means the working directory and must stay visible.
    return tuple(part for value in values if value for part in value.split(":"))


# pyelftools' own section and segment objects follow links through the whole file as they are
# made, and trust them. Its declarations of the structures are used instead, on tables that are
# first checked to lie within the file.


def _table(elf: ELFFile, what: str, offset: int, count: int, step: int, kind: Any) -> Iterator[Any]:
    if count and step < kind.sizeof():
        raise MalformedElf(f"{what} at byte {offset:#x}: {step} bytes each are too few")
    _check_extent(elf, what, offset, count * step)
    for index in range(count):
        yield struct_parse(kind, elf.stream, stream_pos=offset + index * step)


def _check_extent(elf: ELFFile, what: str, offset: int, size: int) -> None:
    if offset + size > elf.stream_len:
        raise MalformedElf(
            f"{what} at byte {offset:#x}: {size} bytes run past the end of the file"
            f" ({elf.stream_len} bytes)"
        )


def _string(elf: ELFFile, what: str, offset: int, end: int) -> str:
    elf.stream.seek(offset)
    text, terminator, _ = elf.stream.read(min(end - offset, _LONGEST_STRING)).partition(b"\0")
    if not terminator:
        raise MalformedElf(f"{what} at byte {offset:#x}: string without end")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise MalformedElf(f"{what} at byte {offset:#x}: not UTF-8: {text[:80]!r}") from error


def _segments(elf: ELFFile) -> tuple[str | None, _Dynamic, list[Any]]:
    """Read the interpreter, the dynamic section, and what is loaded from where."""
    interpreter: str | None = None
    dynamic: Any = None
    loaded: list[Any] = []
    # The loader's view is read, not the section headers': they may be stripped.
    for segment in _table(
        elf,
        "program headers",
        elf["e_phoff"],
        elf["e_phnum"],
        elf["e_phentsize"],
        elf.structs.Elf_Phdr,
    ):
        # Files of separate debug information keep the headers but have no contents.
        if segment["p_filesz"] == 0:
            continue
        if segment["p_type"] == "PT_LOAD":
            loaded.append(segment)
        elif segment["p_type"] == "PT_DYNAMIC":
            dynamic = segment
        elif segment["p_type"] == "PT_INTERP":
            interpreter = _interpreter(elf, segment["p_offset"], segment["p_filesz"])
    return interpreter, _dynamic(elf, dynamic, loaded), loaded


def _interpreter(elf: ELFFile, offset: int, size: int) -> str:
    if size > _LONGEST_INTERPRETER:
        raise MalformedElf(f"interpreter at byte {offset:#x}: {size} bytes are too many")
    _check_extent(elf, "interpreter", offset, size)
    return _string(elf, "interpreter", offset, offset + size)


_WITH_STRINGS = ("DT_SONAME", "DT_NEEDED", "DT_RUNPATH", "DT_RPATH", "DT_VERNEED", "DT_VERDEF")


def _dynamic(elf: ELFFile, segment: Any, loaded: list[Any]) -> _Dynamic:
    values: dict[str, list[int]] = defaultdict(list)
    if segment is None:
        return _Dynamic({})
    kind = elf.structs.Elf_Dyn
    step = kind.sizeof()
    for entry in _table(
        elf, "dynamic section", segment["p_offset"], segment["p_filesz"] // step, step, kind
    ):
        if entry["d_tag"] == "DT_NULL":
            break
        values[str(entry["d_tag"])].append(entry["d_val"])
    kept = {tag: tuple(found) for tag, found in values.items()}
    if not any(tag in kept for tag in _WITH_STRINGS):
        return _Dynamic(kept)
    start = _file_offset(values["DT_STRTAB"][0] if values["DT_STRTAB"] else 0, loaded)
    size = values["DT_STRSZ"][0] if values["DT_STRSZ"] else 0
    _check_extent(elf, "dynamic strings", start, size)
    return _Dynamic(kept, start, size)


def _versions_needed(
    elf: ELFFile, dynamic: _Dynamic, loaded: list[Any]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    kinds = elf.structs
    found = []
    for at, need in _chain(elf, dynamic, loaded, "DT_VERNEED", kinds.Elf_Verneed, "vn_next"):
        names = _links(elf, at + need["vn_aux"], need["vn_cnt"], kinds.Elf_Vernaux, "vna_next")
        library = dynamic.string(elf, "version need", need["vn_file"])
        versions = tuple(dynamic.string(elf, "version name", aux["vna_name"]) for _, aux in names)
        found.append((library, versions))
    return tuple(found)


def _versions_defined(elf: ELFFile, dynamic: _Dynamic, loaded: list[Any]) -> tuple[str, ...]:
    kinds = elf.structs
    found = []
    for at, definition in _chain(elf, dynamic, loaded, "DT_VERDEF", kinds.Elf_Verdef, "vd_next"):
        # Only the first name is the version's own; those after it are of its predecessors.
        for _, aux in _links(elf, at + definition["vd_aux"], 1, kinds.Elf_Verdaux, "vda_next"):
            found.append(dynamic.string(elf, "version definition", aux["vda_name"]))
    return tuple(found)


def _chain(
    elf: ELFFile, dynamic: _Dynamic, loaded: list[Any], tag: str, kind: Any, onwards: str
) -> Iterator[tuple[int, Any]]:
    """The structures of a list of the dynamic section, each with its offset in the file."""
    if dynamic.values.get(tag):
        start = _file_offset(dynamic.number(tag), loaded)
        yield from _links(elf, start, dynamic.number(f"{tag}NUM"), kind, onwards)


def _links(elf: ELFFile, at: int, count: int, kind: Any, onwards: str) -> Iterator[tuple[int, Any]]:
    for _ in range(count):
        [item] = _table(elf, "symbol versions", at, 1, kind.sizeof(), kind)
        yield at, item
        if item[onwards] == 0:
            return
        at += item[onwards]


def _file_offset(address: int, loaded: list[Any]) -> int:
    for segment in loaded:
        distance = address - segment["p_vaddr"]
        if 0 <= distance < segment["p_filesz"]:
            return int(segment["p_offset"] + distance)
    raise MalformedElf(f"dynamic strings: address {address:#x} is not loaded from the file")


def _code(elf: ELFFile) -> tuple[Code, ...]:
    sections = [(each["sh_offset"], each["sh_size"]) for _, each in _fatbin_sections(elf)]
    try:
        return tuple(
            code for at, size in sections for code in fatbin.read(elf.stream, at, at + size)
        )
    except MalformedFatbinError as error:
        raise MalformedElf(str(error)) from error


def _fatbin_sections(elf: ELFFile) -> Iterator[tuple[bytes, Any]]:
    start = elf["e_shoff"]
    kind = elf.structs.Elf_Shdr
    if start == 0:
        return
    # Before the counts are read: large ones are stored in the first header.
    _check_extent(elf, "section headers", start, kind.sizeof())
    names_index = elf.get_shstrndx()
    count, step = elf.num_sections(), elf["e_shentsize"]
    if names_index == 0 or count == 0:
        return
    if names_index >= count:
        raise MalformedElf(f"section names: section {names_index} of {count}")
    [names] = _table(elf, "section names", start + names_index * step, 1, step, kind)
    if step < kind.sizeof():
        raise MalformedElf(f"section headers: {step} bytes each are too few")
    _check_extent(elf, "section headers", start, count * step)
    order: Literal["little", "big"] = "little" if elf.little_endian else "big"
    longest = max(map(len, fatbin.SECTIONS))
    for at in range(start, start + count * step, step):
        # Most sections are no code: only sh_name, the first word, is read of those (gABI).
        elf.stream.seek(at)
        name_at = names["sh_offset"] + int.from_bytes(elf.stream.read(4), order)
        _check_extent(elf, "section name", name_at, 0)
        elf.stream.seek(name_at)
        name = elf.stream.read(longest)
        if not name.startswith(fatbin.SECTIONS):
            continue
        [section] = _table(elf, "section header", at, 1, step, kind)
        # NOBITS: a file of separate debug information, which keeps the size, not the contents.
        if section["sh_type"] != "SHT_NOBITS":
            what = name.partition(b"\0")[0].decode()
            _check_extent(elf, what, section["sh_offset"], section["sh_size"])
            yield name[: len(what) + 1], section
