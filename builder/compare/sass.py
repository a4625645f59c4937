"""Cubins split into the sections of each function, and the signs of its 8-bit loads.

The format is not specified; see ``builder.tools.cubin``.  The opcodes and the widths of loads were
compared with nvdisasm of CUDA 13.5, for code for 12.0.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field

from builder.tools import cubin
from builder.tools.elf_sections import NOBITS, ElfSections, Section

CODE = ".text"
_INSTRUCTION = 16  # bytes
_LOADS = frozenset({0x980, 0x981, 0x983, 0x984, 0xB82, 0x7AC})
"""LD, LDG, LDL, LDS, LDC and LDCU: the low 12 bits of an instruction."""
_UNSIGNED, _SIGNED = 0, 1  # 8-bit widths, in bits 73 to 75


@dataclass(frozen=True, slots=True)
class SassFunction:
    """A kernel or device function; ``name`` is mangled."""

    name: str
    size: int
    """Bytes of SASS."""
    registers: int | None
    """Of a thread; None for device functions."""
    sections: dict[str, str]
    """sha256 (hex) of each of its sections, by the name without the function's: ``.text``."""
    loads: tuple[int, int]
    """8-bit loads: signed and unsigned ones."""


@dataclass(slots=True)
class _Parts:
    code: Section
    sections: dict[str, Section] = field(default_factory=dict)


def split(data: bytes, arch: int) -> tuple[list[SassFunction], list[tuple[str, str, int]]]:
    """The functions of a cubin, and the other sections: name, sha256 (hex) and bytes.

    Raises ``MalformedElf`` and ``MalformedCubinError``.
    """
    elf = ElfSections(io.BytesIO(data))
    start = f"{CODE}."
    owners = {
        each.name.removeprefix(start): _Parts(each)
        for each in elf.all
        if each.name.startswith(start)
    }
    others = []
    for section in elf.all:
        prefix, owner = _owned(section.name, owners)
        if owner is None:
            others.append((section.name, _digest(elf, section), section.size))
        else:
            owner.sections[prefix] = section
    registers = {kernel.name: kernel.registers for kernel in cubin.kernels(data, arch)}
    functions = [_function(elf, name, parts, registers.get(name)) for name, parts in owners.items()]
    return functions, others


def _owned(name: str, owners: dict[str, _Parts]) -> tuple[str, _Parts | None]:
    """The name of a section without that of its function, and the function."""
    at = name.find(".", 1)
    while at > 0:
        owner = owners.get(name[at + 1 :])
        if owner is not None:
            return name[:at], owner
        at = name.find(".", at + 1)
    return name, None


def _digest(elf: ElfSections, section: Section) -> str:
    # Of a section without bytes in the file, its size counts.
    return f"{section.size}" if section.type == NOBITS else elf.digest(section)


def _function(elf: ElfSections, name: str, parts: _Parts, registers: int | None) -> SassFunction:
    loads = byte_loads(elf.content(parts.code))
    digests = {prefix: _digest(elf, section) for prefix, section in parts.sections.items()}
    return SassFunction(name, parts.code.size, registers, digests, loads)


def byte_loads(code: bytes) -> tuple[int, int]:
    """The number of signed and of unsigned 8-bit loads in the SASS of a function."""
    rows = zip(*(code[at::_INSTRUCTION] for at in (0, 1, 9)), strict=False)
    widths = [width >> 1 & 7 for low, high, width in rows if (low | (high & 0xF) << 8) in _LOADS]
    return widths.count(_SIGNED), widths.count(_UNSIGNED)
