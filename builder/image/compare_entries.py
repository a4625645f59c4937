"""The device code of a file: ELF files, cubins, fat binaries and PTX."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Literal, cast

from builder.image.code_paths import CodePaths, paths
from simulator import fatbin
from simulator.elf import CUDA, Elf, is_elf
from simulator.fatbin import Code, FatbinEntry, Region
from simulator.library import MACHINES
from simulator.selection import Capability

_SHIFTED_ABI = 8  # EI_ABIVERSION of CUDA 13
_PTX = re.compile(
    rb"(?:\s++|//[^\n]*+|/\*.*?\*/)*+\.version\s++\d++\.\d++"
    rb"(?:\s++|//[^\n]*+|/\*.*?\*/)*+\.target\s++sm_(\d++)([af]?)\b",
    re.DOTALL,
)
"""PTX ISA, "PTX Module Directives": a module begins with its version, and its target follows."""
_PTX_HEAD = 1 << 16  # bytes in which they are, after comments


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """One entry of a fat binary; or a cubin or PTX by itself."""

    module: int
    """Number of the fat binary in the file, from 1."""
    entry: FatbinEntry
    stored: str
    """sha256 (hex) of the payload as it is in the file."""

    @property
    def code(self) -> str:
        """``sm_120a``, ``compute_120``."""
        return self.entry.code.name


def may_have_code(path: str, head: bytes) -> bool:
    """Whether a file with these first bytes may have device code; of PTX the name decides."""
    return is_elf(head) or head.startswith(fatbin.MAGIC) or path.endswith(".ptx")


def entries(stream: IO[bytes]) -> list[ModuleEntry]:
    """The entries of all fat binaries of a file, in file order; none of files without any.

    The file may be an ELF file, a fat binary, a cubin or PTX; each of the last two is one entry.
    Raises ``MalformedElf``.
    """
    return [
        ModuleEntry(number, entry, _stored(stream, entry))
        for number, region in enumerate(_regions(stream), 1)
        for entry in region.entries
    ]


def on_card(path: str, stream: IO[bytes] | None) -> CodePaths:
    """What the farm's card does with a file's device code; nothing of an absent file.

    The card has compute capability 12.0; a library of arm64 runs on a GB10, which has 12.1.
    Raises ``MalformedElf``.
    """
    if stream is None:
        return CodePaths(path)
    return paths(path, fatbin.modules(_regions(stream)), _card(stream))


def _card(stream: IO[bytes]) -> Capability:
    stream.seek(0)
    arm = is_elf(stream.read(4)) and MACHINES.get(Elf(stream).machine) == "aarch64"
    return Capability(12, 1 if arm else 0)


def _regions(stream: IO[bytes]) -> Iterator[Region]:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    head = stream.read(min(size, _PTX_HEAD))
    whole: tuple[int, int, int] = (0, size, size)
    if is_elf(head):
        elf = Elf(stream)
        if elf.machine == CUDA:
            yield Region(0, size, (FatbinEntry(Code("elf", _cubin_arch(elf)), *whole),))
            return
        for section in elf.fatbins():
            end = section.offset + section.size
            yield from fatbin.regions(stream, section.offset, end)
    elif head.startswith(fatbin.MAGIC):
        yield from fatbin.regions(stream, 0, size)
    elif (code := _ptx_code(head)) is not None:
        yield Region(0, size, (FatbinEntry(code, *whole),))


def _cubin_arch(elf: Elf) -> int:
    """The architecture of a cubin (120: 12.0; 120a and 120f do not differ there).

    Its place in e_flags depends on the version of the ABI: EF_CUDA_SM and EF_CUDA_SM_MASK of LLVM's
    llvm/include/llvm/BinaryFormat/ELF.h.
    """
    return (elf.flags >> (8 if elf.abi >= _SHIFTED_ABI else 0)) & 0xFF


def _ptx_code(head: bytes) -> Code | None:
    """The target of a PTX text; None for other files."""
    found = _PTX.match(head)
    if found is None:
        return None
    return Code("ptx", int(found[1]), cast("Literal['', 'a', 'f']", found[2].decode()))


def _stored(stream: IO[bytes], entry: FatbinEntry) -> str:
    stream.seek(entry.offset)
    return hashlib.sha256(stream.read(entry.stored)).hexdigest()
