"""Cubins split into the sections of each function."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

from builder.tools import cubin
from builder.tools.elf_sections import NOBITS, Elf, Section

CODE = ".text"


@dataclass(frozen=True, slots=True)
class SassFunction:
    """A kernel or device function; ``name`` is mangled."""

    name: str
    size: int
    """Bytes of SASS."""
    kernel: cubin.Kernel | None
    """Its resources; None for device functions."""
    sections: dict[str, str]
    """sha256 (hex) of each of its sections, by the name without the function's: ``.text``."""


@dataclass(slots=True)
class _Parts:
    code: Section
    sections: dict[str, Section] = field(default_factory=dict)


def split(data: bytes, arch: int) -> tuple[list[SassFunction], list[tuple[str, str, int]]]:
    """The functions of a cubin, and the other sections: name, sha256 (hex) and bytes.

    Raises ``MalformedElf``.
    """
    elf = Elf(io.BytesIO(data))
    start = f"{CODE}."
    owners = {
        each.name.removeprefix(start): _Parts(each)
        for each in elf.sections[1:]
        if each.name.startswith(start)
    }
    others = []
    for section in elf.sections[1:]:
        prefix, owner = _owned(section.name, owners)
        if owner is None:
            others.append((section.name, _digest(elf, section), section.size))
        else:
            owner.sections[prefix] = section
    kernels = {kernel.name: kernel for kernel in cubin.kernels(data, arch)}
    functions = []
    for name, parts in owners.items():
        digests = {prefix: _digest(elf, section) for prefix, section in parts.sections.items()}
        functions.append(SassFunction(name, parts.code.size, kernels.get(name), digests))
    return functions, others


def _owned(name: str, owners: dict[str, _Parts]) -> tuple[str, _Parts | None]:
    at = name.find(".", 1)
    while at > 0:
        owner = owners.get(name[at + 1 :])
        if owner is not None:
            return name[:at], owner
        at = name.find(".", at + 1)
    return name, None


def _digest(elf: Elf, section: Section) -> str:
    # A section without bytes in the file counts by its size.
    return f"{section.size}" if section.type == NOBITS else elf.digest(section)
