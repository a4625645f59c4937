"""Cubins: the ELF files of CUDA device code, and the resources that each kernel in them takes.

The layout is not specified.  It was found by inspection, and compared with `cuobjdump -elf`,
`cuobjdump --dump-resource-usage` and `ptxas -v` of CUDA 12.0 to 13.2:

- a kernel is a function symbol with bit 4 of `st_other` set; its section has its SASS;
- `.nv.info` has records for many symbols, `.nv.info.NAME` has the records of one kernel, whose code
  section is its `sh_info`.  A record is a byte of format, a byte of attribute, and 16 bits: the
  value, or with format 4 the number of bytes that follow;
- `.nv.shared.NAME` has the size of the kernel's static shared memory.  For compute capability 9.0
  and higher the kilobyte is added that the driver reserves in each block: `ptxas -v` prints 40000
  where the section has 41024;
- the attribute 0x55, which cuobjdump calls "SpillRefill", lists the instructions that spill
  registers to local memory and refill them.  Added up, their sizes are the bytes of spill stores
  and loads that `ptxas -v` prints.  CUDA 12.4 does not write it yet, 12.6 does;
- the attribute 0x0f lists the functions outside of the cubin that a kernel calls: vprintf is
  printf, __assertfail is assert.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import IO, Literal, cast

from simulator.elf import CUDA, FUNCTION, NOBITS, SYMTAB_SHNDX, XINDEX, Elf, MalformedElf, Section

_RECORD = struct.Struct("<BBH")
_WORD = struct.Struct("<I")
_SYMTAB, _ENTRY = 2, 0x10
_INFO = 0x70000000  # SHT_CUDA_INFO
_SIZED = 4  # the format of a record with a payload
_MAX_THREADS, _REQUIRED_THREADS = 0x05, 0x10
_STACK, _REGISTERS = 0x12, 0x2F
_CLUSTER, _ANNOTATIONS, _EXTERNS = 0x3D, 0x55, 0x0F
_MESSAGES = {"vprintf", "__assertfail"}
_SPILL = 1  # kind of annotation
_STORE, _LOAD = 0x387, 0x983  # STL and LDL: the low 12 bits of an instruction since Volta
_INSTRUCTION = 16  # bytes
_WIDTHS = (1, 1, 2, 2, 4, 8, 16)  # bytes, by bits 73 to 75 of a load or store
# The low 9 bits of an instruction say what it does, 3 more the kind of its operands.  These compute
# with registers and constants, choose a way, wait, or write to the thread's own stack: MOV, CS2R,
# SEL, ISETP, IADD3, LEA, LOP3, PRMT, PLOP3, IMAD, HFMA2, IADD, VIADD, I2FP, UMOV, UISETP, UIADD3,
# ULOP3, ULDC, I2F, NOP, S2R, BAR, BSYNC, CALL.ABS, CALL.REL, BSSY, BRA, WARPSYNC, EXIT, LEPC, RET,
# BPT, NANOSLEEP, LDC, STL, LDCU, R2UR, S2UR (nvdisasm 13.5, sm_80 to sm_121a).
_HARMLESS = {
    *(0x002, 0x005, 0x007, 0x00C, 0x010, 0x011, 0x012, 0x016, 0x01C, 0x024, 0x025, 0x031, 0x035),
    *(0x036, 0x045, 0x082, 0x08C, 0x090, 0x092, 0x0B9, 0x106, 0x112, 0x118, 0x119, 0x11D, 0x141),
    *(0x143, 0x144, 0x145, 0x147, 0x148, 0x14D, 0x14E, 0x150, 0x15C, 0x15D, 0x182, 0x187, 0x1AC),
    *(0x1C2, 0x1C3),
}
_OPCODE, _CALL_ABS, _CALL_REL, _EXIT, _BPT = 0x1FF, 0x143, 0x144, 0x14D, 0x15C
_ANNOTATED_ABI = 8
"""EI_ABIVERSION of CUDA 13, which always annotates spills."""
_RESERVED = 1024  # bytes of shared memory, since compute capability 9.0


Idle = Literal["", "empty", "traps"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as compiled for one architecture."""

    name: str
    """Mangled."""
    registers: int
    """For each thread."""
    shared: int
    """Bytes of static shared memory of a block."""
    local: int
    """Bytes of local memory of a thread: arrays, spilled registers and called functions."""
    spill_stores: int | None
    """Bytes of the instructions that spill registers; None where the compiler did not mark them."""
    spill_loads: int | None
    threads: int
    """Threads of a block at most (``.maxntid``), or exactly (``.reqntid``); 0: not limited."""
    cluster: int
    """Blocks of a cluster (``__cluster_dims__``); 0: none required."""
    size: int
    """Bytes of its SASS."""
    digest: str
    """sha256 of its SASS."""
    idle: Idle = ""
    """Its body computes nothing: it is "empty", or "traps" or prints a message."""

    @property
    def spills(self) -> int | None:
        """Bytes of spill stores and loads together."""
        if self.spill_stores is None or self.spill_loads is None:
            return None
        return self.spill_stores + self.spill_loads


@dataclass(slots=True)
class _Attributes:
    """The attributes of one kernel, from its records."""

    threads: int = 0
    cluster: int = 0
    spills: tuple[int, ...] = ()
    """Offsets of instructions."""
    shared: int = 0
    externs: tuple[int, ...] = ()
    """The symbols of the functions outside of the cubin that it calls."""


def kernels(data: bytes, arch: int) -> list[Kernel]:
    """The kernels of a cubin for an architecture (120: 12.0), in the order of its symbols.

    Raises ``MalformedElf`` with the byte of the cubin where it is damaged.
    """
    return _Cubin(data, arch).kernels()


class _Cubin:
    def __init__(self, data: bytes, arch: int) -> None:
        self.elf, self.arch = Elf(io.BytesIO(data)), arch
        if self.elf.machine != CUDA:
            raise MalformedElf(f"byte 0x0: no cubin: ELF machine {self.elf.machine}")
        self.sections = self.elf.sections
        if not self.sections:
            raise MalformedElf("byte 0x28: a cubin without section headers")

    def kernels(self) -> list[Kernel]:
        found: dict[int, tuple[str, int]] = {}
        for section in self.sections:
            if section.type == _SYMTAB:
                found.update(self._entries(section))
        if not found:
            return []
        registers, stacks = self._of_symbols()
        attributes = self._of_sections()
        return [
            self._kernel(name, place, registers.get(number), stacks.get(number, 0), attributes)
            for number, (name, place) in found.items()
        ]

    def _entries(self, table: Section) -> Iterator[tuple[int, tuple[str, int]]]:
        """The number of each kernel's symbol, its name and its code section."""
        extended = next((each for each in self.sections if each.type == SYMTAB_SHNDX), None)
        places = self.elf.content(extended) if extended else b""
        for number, each in enumerate(self.elf.symbols(table)):
            place = each.section
            if each.type != FUNCTION or not each.other & _ENTRY or place == 0:
                continue
            if place == XINDEX and len(places) >= 4 * (number + 1):
                (place,) = _WORD.unpack_from(places, 4 * number)
            if place >= len(self.sections):
                raise MalformedElf(f"byte {table.offset:#x}: symbol {number} in {place}")
            yield number, (each.name, place)

    def _records(self, section: Section) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The attributes of a section with their payload as words of 32 bits."""
        data, at = self.elf.content(section), 0
        while at < len(data):
            where = f"byte {section.offset + at:#x}: a record of {section.name!r}"
            if at + _RECORD.size > len(data):
                raise MalformedElf(f"{where} is cut off")
            form, attribute, size = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            if form != _SIZED:
                continue
            if at + size > len(data):
                raise MalformedElf(f"{where} of {size} bytes is cut off")
            yield attribute, struct.unpack_from(f"<{size // 4}I", data, at)
            at += size

    def _of_symbols(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Registers and bytes of stack, by the number of the symbol."""
        registers: dict[int, int] = {}
        stacks: dict[int, int] = {}
        for section in self.sections:
            if section.type == _INFO and section.name == ".nv.info":
                for attribute, words in self._records(section):
                    if attribute in (_REGISTERS, _STACK) and len(words) == 2:
                        of = registers if attribute == _REGISTERS else stacks
                        of[words[0]] = words[1]
        return registers, stacks

    def _of_sections(self) -> dict[int, _Attributes]:
        """The attributes of kernels by the number of their code section."""
        found: dict[int, _Attributes] = {}
        for section in self.sections:
            if section.type == _INFO and section.name.startswith(".nv.info."):
                of = found.setdefault(section.info, _Attributes())
                for attribute, words in self._records(section):
                    _note(of, attribute, words)
            elif section.type == NOBITS and section.name.startswith(".nv.shared."):
                reserved = _RESERVED if self.arch >= 90 else 0
                size = max(0, section.size - reserved)
                found.setdefault(section.info, _Attributes()).shared = size
        return found

    def _kernel(
        self,
        name: str,
        place: int,
        registers: int | None,
        stack: int,
        attributes: Mapping[int, _Attributes],
    ) -> Kernel:
        section = self.sections[place]
        code = self.elf.content(section)
        of = attributes.get(place, _Attributes())
        known = (
            self.elf.abi >= _ANNOTATED_ABI
            or stack == 0
            or any(each.spills for each in attributes.values())
        )
        stores, loads = self._spilled(section, code, of.spills) if known else (None, None)
        return Kernel(
            name=name,
            # Before CUDA 9 the upper byte of the section's sh_info had them.
            registers=section.info >> 24 if registers is None else registers,
            shared=of.shared,
            local=stack,
            spill_stores=stores,
            spill_loads=loads,
            threads=of.threads,
            cluster=of.cluster,
            size=len(code),
            digest=hashlib.sha256(code).hexdigest(),
            idle=self._idle(code, of.externs),
        )

    def _idle(self, code: bytes, externs: tuple[int, ...]) -> Idle:
        words = [int.from_bytes(code[at : at + 8], "little") for at in range(0, len(code), 16)]
        found = {word & _OPCODE for word in words}
        ends = found & {_EXIT, _BPT}
        if not ends or not found <= _HARMLESS or (_CALL_REL in found and self._functions):
            return ""
        if _CALL_ABS in found and not (externs and {*map(self._names.get, externs)} <= _MESSAGES):
            return ""
        return "traps" if found & {_BPT, _CALL_ABS} else "empty"

    @cached_property
    def _names(self) -> dict[int, str]:
        tables = (each for each in self.sections if each.type == _SYMTAB)
        return {n: each.name for table in tables for n, each in enumerate(self.elf.symbols(table))}

    @cached_property
    def _functions(self) -> bool:
        """Whether it has functions outside of the kernels' own sections."""
        found = [
            each
            for table in self.sections
            if table.type == _SYMTAB
            for each in self.elf.symbols(table)
            if each.type == FUNCTION and each.section
        ]
        kernels = {each.section for each in found if each.other & _ENTRY}
        return any(each.section not in kernels for each in found)

    def _spilled(self, section: Section, code: bytes, offsets: tuple[int, ...]) -> tuple[int, int]:
        """Bytes that the instructions at these offsets store to local memory, and load from it."""
        bytes_of = {_STORE: 0, _LOAD: 0}
        for at in offsets:
            if at + _INSTRUCTION > len(code):
                raise MalformedElf(
                    f"byte {section.offset + at:#x}: a spill outside of {section.name!r}"
                )
            word = int.from_bytes(code[at : at + _INSTRUCTION], "little")
            if word & 0xFFF in bytes_of:
                bytes_of[word & 0xFFF] += _WIDTHS[min(word >> 73 & 7, 6)]
        return bytes_of[_STORE], bytes_of[_LOAD]


def _note(of: _Attributes, attribute: int, words: tuple[int, ...]) -> None:
    if attribute in (_MAX_THREADS, _REQUIRED_THREADS):
        of.threads = math.prod(words)
    elif attribute == _CLUSTER:
        of.cluster = math.prod(words)
    elif attribute == _ANNOTATIONS:
        pairs = zip(words[::2], words[1::2], strict=False)
        of.spills = tuple(at for kind, at in pairs if kind == _SPILL)
    elif attribute == _EXTERNS:
        of.externs = words


# C++ names as people write them, by the C++ library that NumPy needs as well.
#
# A name may be hostile: each reference to an earlier part can double the demangled text, so 250
# characters fill any memory.  So a process of limited memory and time demangles.

# A name a line, and its answer a line: the name itself where the answer has more than 64 KiB.
_PROGRAM = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
demangle, free = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"], ctypes.CDLL(None)["free"]
length = ctypes.CDLL(None)["strlen"]
demangle.restype, length.restype = ctypes.c_void_p, ctypes.c_size_t
length.argtypes = free.argtypes = [ctypes.c_void_p]
for line in sys.stdin.buffer:
    found = demangle(line[:-1], None, None, None)  # Itanium C++ ABI, 3.4 "Demangler API"
    short = found and length(found) <= 65536
    sys.stdout.buffer.write(ctypes.string_at(found) + b"\\n" if short else line)
    sys.stdout.buffer.flush()
    free(found)
"""


def demangled(name: str) -> str:
    """The name of a kernel with its template arguments and parameters.

    A name that is not mangled stays as it is, and each name where the library is missing, or after
    the first one that takes more memory or time than any honest one.  Functions with internal
    linkage have a prefix in relocatable device code: ``__nv_static_25__..._Z4mainv``.
    """
    if name.startswith("__nv_static_"):
        name = name[max(0, name.find("_Z")) :]
    if not name.startswith("_Z") or "\n" in name:
        return name
    with _LOCK:
        process = _process(os.getpid())
        stream = cast("IO[bytes]", process.stdin)
        try:
            stream.write(name.encode(errors="replace") + b"\n")
            stream.flush()
        except (OSError, ValueError):  # the process has ended
            with suppress(OSError):
                stream.close()
            return name
        answer = cast("IO[bytes]", process.stdout).readline()
    return answer[:-1].decode(errors="replace") if answer.endswith(b"\n") else name


_LOCK = threading.Lock()


@cache
def _process(_: int) -> subprocess.Popen[bytes]:
    """The one of this process: a fork has none of its own yet."""
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null)


def short(name: str) -> str:
    """A demangled name without return type and parameters."""
    depth, start, end = 0, 0, len(name)
    for at, character in enumerate(name):
        if character in "<([{":
            # The last parenthesis outside of all others opens the parameters.
            if character == "(" and depth == 0 and at > start:
                end = at
            depth += 1
        elif character in ">)]}":
            depth -= 1
        elif character == " " and depth == 0:
            start, end = at + 1, len(name)
    return name[start:end]


def function_of(name: str) -> str:
    """The demangled name of a function without its template arguments and parameters: ``ns::f``."""
    kept, depth = "", 0
    for character in short(demangled(name).removesuffix(" const")).replace(
        "(anonymous namespace)::", ""
    ):
        depth += character == "<"
        kept += character if depth == 0 else ""
        depth -= character == ">"
    return kept or name
