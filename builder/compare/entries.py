"""The device code of a file: ELF files, static libraries, cubins, fat binaries and PTX."""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Literal, cast

from builder.tools import fatbin
from builder.tools.elf_sections import CUDA, Elf, MalformedElf, is_elf
from builder.tools.fatbin import Code, FatbinEntry, MalformedFatbinError

AR_MAGIC = b"!<arch>\n"
_HEADER = struct.Struct("16s32x10s2s")
_END = b"`\n"
_BSD = b"#1/"


class MalformedArchiveError(ValueError):
    """An archive is truncated or damaged; the text says where (byte offset) and how."""


def members(stream: IO[bytes]) -> Iterator[tuple[int, int]]:
    """Offset and size of the content of each member, also of the archive's own tables.

    Raises ``MalformedArchiveError``.
    """
    end = stream.seek(0, os.SEEK_END)
    at = len(AR_MAGIC)
    while at < end:
        where = f"archive member at byte {at:#x}"
        stream.seek(at)
        data = stream.read(_HEADER.size)
        if len(data) < _HEADER.size:
            raise MalformedArchiveError(f"{where}: its header is cut off")
        name, digits, magic = _HEADER.unpack(data)
        if magic != _END or not digits.strip().isdigit():
            raise MalformedArchiveError(f"{where}: damaged header")
        start, size = at + _HEADER.size, int(digits)
        if start + size > end:
            raise MalformedArchiveError(f"{where}: {size} bytes run past the end of the file")
        skipped = _name_size(name)
        yield start + min(skipped, size), size - min(skipped, size)
        at = start + size + size % 2


def _name_size(name: bytes) -> int:
    digits = name.removeprefix(_BSD).strip()
    return int(digits) if name.startswith(_BSD) and digits.isdigit() else 0


MALFORMED = (MalformedArchiveError, MalformedElf, MalformedFatbinError)
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
    return is_elf(head) or head.startswith((AR_MAGIC, fatbin.MAGIC)) or path.endswith(".ptx")


def entries(stream: IO[bytes]) -> list[ModuleEntry]:
    """The entries of all fat binaries of a file, in file order; none of files without any.

    The file may be an ELF file, a static library of such, a fat binary, a cubin or PTX; each of
    the last two is one entry.  Raises one of ``MALFORMED``.
    """
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    is_archive = stream.read(len(AR_MAGIC)) == AR_MAGIC
    parts = members(stream) if is_archive else [(0, size)]
    found = (module for part in parts for module in _modules(stream, *part))
    return [
        ModuleEntry(number, entry, _stored(stream, entry))
        for number, module in enumerate(found, 1)
        for entry in module
    ]


def _modules(stream: IO[bytes], start: int, size: int) -> Iterator[Sequence[FatbinEntry]]:
    stream.seek(start)
    head = stream.read(min(size, _PTX_HEAD))
    whole: tuple[int, int, int] = (start, size, size)
    if is_elf(head):
        elf = Elf(stream, start, size)
        if elf.machine == CUDA:
            yield (FatbinEntry(Code("elf", _cubin_arch(elf)), *whole),)
            return
        for section in elf.fatbins():
            first = start + section.offset
            for region in fatbin.regions(stream, first, first + section.size):
                yield region.entries
    elif head.startswith(fatbin.MAGIC):
        for region in fatbin.regions(stream, start, start + size):
            yield region.entries
    elif (code := _ptx_code(head)) is not None:
        yield (FatbinEntry(code, *whole),)


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
