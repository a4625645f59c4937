"""Cubins, byte by byte: the sections, symbols and attributes that ptxas writes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

REGISTERS, STACK, MAX_THREADS, REQUIRED_THREADS = 0x2F, 0x12, 0x05, 0x10
CLUSTER, ANNOTATIONS, PARAMETERS = 0x3D, 0x55, 0x17
STL, LDL, NOP = 0x387, 0x983, 0x918
PROGBITS, SYMTAB, STRTAB, NOBITS, INFO = 1, 2, 3, 8, 0x70000000


def instruction(opcode: int, width: int = 4) -> bytes:
    """One instruction of 128 bits; bits 73 to 75 have the width of a load or store."""
    return (opcode | {1: 0, 2: 2, 4: 4, 8: 5, 16: 6}[width] << 73).to_bytes(16, "little")


@dataclass(frozen=True)
class Function:
    """A kernel, or with ``entry`` False a function that kernels call."""

    name: str
    code: bytes = instruction(NOP) * 8
    registers: int | None = 32
    stack: int | None = 0
    shared: int = 0
    """Bytes of the section, with what the driver reserves."""
    attributes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    entry: bool = True


def record(attribute: int, words: tuple[int, ...]) -> bytes:
    return struct.pack(f"<BBH{len(words)}I", 4, attribute, 4 * len(words), *words)


def cubin(*functions: Function, abi: int = 8, machine: int = 190) -> bytes:
    """An ELF file with one symbol, one code section and its attributes for each function."""
    names, symbols, records = b"\0", bytes(24), b""
    sections: list[tuple[str, int, bytes, int, int]] = []  # name, type, data, size, info
    for number, each in enumerate(functions, 1):
        place = 4 + len(sections)
        other = 0x10 if each.entry else 0
        symbols += struct.pack("<IBBHQQ", len(names), 0x12, other, place, 0, len(each.code))
        names += each.name.encode() + b"\0"
        own = struct.pack("<BBH", 3, 0x1B, 255)  # a record with its value in the header
        own += b"".join(record(*attribute) for attribute in each.attributes)
        sections += [
            (f".text.{each.name}", PROGBITS, each.code, len(each.code), number | 40 << 24),
            (f".nv.info.{each.name}", INFO, own, len(own), place),
            (f".nv.shared.{each.name}", NOBITS, b"", each.shared, place),
        ]
        if each.registers is not None:
            records += record(REGISTERS, (number, each.registers))
        if each.stack is not None:
            records += record(STACK, (number, each.stack))
    first = [
        ("", 0, b"", 0, 0),
        (".strtab", STRTAB, names, len(names), 0),
        (".symtab", SYMTAB, symbols, len(symbols), 0),
        (".nv.info", INFO, records, len(records), 0),
    ]
    return _file([*first, *sections], abi, machine)


def _file(sections: list[tuple[str, int, bytes, int, int]], abi: int, machine: int) -> bytes:
    flags = 120 << 8 if abi >= 8 else 120  # where the architecture is
    titles = b"".join(name.encode() + b"\0" for name, *_ in sections) + b".shstrtab\0"
    rows, body, title = b"", b"", 0
    for name, kind, data, size, info in [
        *sections,
        (".shstrtab", STRTAB, titles, len(titles), 0),
    ]:
        rows += struct.pack("<IIQQQQIIQQ", title, kind, 0, 0, 64 + len(body), size, 1, info, 4, 0)
        title += len(name) + 1
        body += data
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01\x41" + bytes([abi]),
        *(2, machine, 1, 0, 0, 64 + len(body), flags),
        *(64, 56, 0, 64, len(sections) + 1, len(sections)),
    )
    return header + body + rows
