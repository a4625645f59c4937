"""The kernels of a library: its fat binaries, what a card takes of each, and what kernels take.

Only the code that cards of its major version take is unpacked, one fat binary after the other: a
library of 159 MB with 6,731 kernels for 12.0 takes 1.7 s and 40 MB of memory.

The layout of cubins is not specified.  It was found by inspection, and compared with
`cuobjdump -elf`, `cuobjdump --dump-resource-usage` and `ptxas -v` of CUDA 12.0 to 13.2:

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
import posixpath
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Literal

from simulator import MalformedElf, fatbin
from simulator.elf import (
    CUDA,
    FUNCTION,
    NOBITS,
    XINDEX,
    Elf,
    Section,
    loaded_fatbins,
)
from simulator.fatbin import FatbinEntry, Region, taken
from simulator.selection import Capability, Code, preferred

NONE = "none"
MINORS = 4  # minor versions of a family of cards that are looked at: 12.0, 12.1, ...
Idle = Literal["", "empty", "traps"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as compiled for one architecture."""

    name: str  # mangled
    registers: int  # for each thread
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
    """Bytes of its SASS; ``digest`` is their sha256."""
    digest: str
    idle: Idle = ""
    """Its body computes nothing: it is "empty", or "traps" or prints a message."""

    @property
    def spills(self) -> int | None:
        """Bytes of spill stores and loads together."""
        if self.spill_stores is None or self.spill_loads is None:
            return None
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True, slots=True)
class Body:
    """The kernels of one code of a module, by their bodies."""

    code: Code
    kernels: int
    messages: int
    """Kernels that only trap or print a message."""
    empty: int
    hollow: tuple[str, ...] = ()
    """Kernels that compute nothing here, and do in another code for the same major version."""
    version: str = ""
    """The directives of PTX: ``.version`` "9.0", ``.target`` "sm_80"."""
    target: str = ""

    @property
    def computing(self) -> int:
        """The kernels that compute something."""
        return self.kernels - self.messages - self.empty


@dataclass(frozen=True, slots=True)
class FatBinary:
    """What one module of a library registers with the driver, as a card sees it."""

    address: int
    """Virtual address of its region: in memory, it is added to where the library is loaded."""
    code: str
    """The code that the card takes: ``sm_120a``; ``compute_90``: PTX, which the driver compiles at
    the first use; ``none``."""
    kernels: tuple[Kernel, ...] = ()
    """The kernels of that code.  For PTX, only name and threads are known."""
    offered: tuple[str, ...] = ()
    """All its code, also what the card cannot take."""
    machine_code: str = ""
    """sha256 (hex) of the machine code that the card takes; empty: it takes none."""
    bodies: tuple[Body, ...] = ()
    """The code that the card takes, or another one of its major version."""

    def body(self, card: Capability) -> Body | None:
        """The kernels that a card takes; None: none, or it has another major version."""
        bodies = {each.code: each for each in reversed(self.bodies)}
        code = preferred((*bodies, *map(Code.named, self.offered)), card)
        return bodies.get(code) if code else None


@dataclass(frozen=True, slots=True)
class Library:
    """A file with device code."""

    path: str
    fat_binaries: tuple[FatBinary, ...]

    @property
    def name(self) -> str:
        """As ``library_name``."""
        return library_name(self.path)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of all its modules; modules that use the same template have one each."""
        return tuple(kernel for binary in self.fat_binaries for kernel in binary.kernels)

    @property
    def codes(self) -> dict[str, int]:
        """What the card takes, with the number of fat binaries."""
        return dict(Counter(binary.code for binary in self.fat_binaries))

    @property
    def ptx(self) -> tuple[str, ...]:
        """The versions of the PTX that the card takes."""
        taken = (
            body.version
            for each in self.fat_binaries
            for body in each.bodies
            if body.code.kind == "ptx" and body.code.name == each.code
        )
        return tuple(sorted({*taken}))

    @property
    def offered(self) -> frozenset[str]:
        """All code that it has, also what the card cannot take."""
        return frozenset(code for binary in self.fat_binaries for code in binary.offered)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The libraries of an image, as a card sees them."""

    image: str
    digest: str
    card: Capability
    libraries: tuple[Library, ...]


def library_name(path: str) -> str:
    """The name of a library without its directory and version: ``libggml-cuda.so``."""
    name, suffix, _ = posixpath.basename(path).partition(".so")
    return name + suffix


def read(stream: IO[bytes], card: Capability) -> Iterator[FatBinary]:
    """The fat binaries of the ELF file open in ``stream``, in file order; none if it has no code.

    Raises ``MalformedElf`` with the byte of the file where it is damaged.
    """
    for section in loaded_fatbins(stream):
        for region in fatbin.regions(stream, section.offset, section.offset + section.size):
            if region.entries:
                address = section.address + region.offset - section.offset
                yield _fat_binary(stream, region, address, card)


def _fat_binary(stream: IO[bytes], region: Region, address: int, card: Capability) -> FatBinary:
    first = {each.code: each for each in reversed(region.entries)}
    offered = tuple(dict.fromkeys(each.code.name for each in region.entries))
    cards = [card, *(Capability(card.major, minor) for minor in range(MINORS))]
    kernels: dict[Code, list[Kernel]] = {}
    bodies, digests = [], {}
    for code in dict.fromkeys(filter(None, (preferred(first, each) for each in cards))):
        payload = first[code].payload(stream)
        digests[code] = hashlib.sha256(payload).hexdigest() if code.kind == "elf" else ""
        found = kernels[code] = _kernels(first[code], payload)
        idle = Counter(kernel.idle for kernel in found)
        head = (ptx_head(payload) or ("", "")) if code.kind == "ptx" else ("", "")
        bodies.append(Body(code, len(found), idle["traps"], idle["empty"], (), *head))
    if any(kernel.idle for found in kernels.values() for kernel in found):
        for code, entry in first.items():
            if code.arch // 10 == card.major and code not in kernels:
                kernels[code] = _kernels(entry, entry.payload(stream))
        bodies = [replace(each, hollow=_hollow(each.code, kernels)) for each in bodies]
    choice = taken(region.entries, card)
    if choice is None:
        return FatBinary(address, NONE, offered=offered, bodies=tuple(bodies))
    found, digest = kernels[choice.code], digests[choice.code]
    return FatBinary(address, choice.code.name, tuple(found), offered, digest, tuple(bodies))


def _kernels(entry: FatbinEntry, payload: bytes) -> list[Kernel]:
    if entry.code.kind == "ptx":
        return [*_of_ptx(payload)]
    try:
        return kernels_of(payload, entry.code.arch)
    except MalformedElf as error:
        raise MalformedElf(
            f"cubin for {entry.code.name} at byte {entry.offset:#x}: {error}"
        ) from error


def _hollow(code: Code, kernels: Mapping[Code, Sequence[Kernel]]) -> tuple[str, ...]:
    """The idle kernels of a code that compute in another one for the same major version."""
    family = (found for each, found in kernels.items() if each.arch // 10 == code.arch // 10)
    computing = {kernel.name for found in family for kernel in found if not kernel.idle}
    return tuple(each.name for each in kernels[code] if each.idle and each.name in computing)


def code_table(libraries: Mapping[str, Iterable[FatBinary]]) -> str:
    """The kernels that the simulated card finds in an image's files, by their paths, as text.

    A line `fatbin PATH ADDRESS CODE`, then one for each of its kernels: its mangled name, and
    figures of a thread (registers, bytes of local memory), of a block (bytes of static shared
    memory, threads at most) and of a cluster (blocks); 0: no limit, or unknown.  Single spaces
    separate the words; a space in a path is written ``%20``.
    """
    rows = []
    for path, binaries in libraries.items():
        for binary in binaries:
            place = path.replace(" ", "%20")
            rows.append(f"fatbin {place} {binary.address:#x} {binary.code}\n")
            rows += (
                f"kernel {kernel.name} registers={kernel.registers} shared={kernel.shared} "
                f"local={kernel.local} threads={kernel.threads} cluster={kernel.cluster} "
                f"spills={kernel.spills or 0}\n"
                for kernel in binary.kernels
            )
    return "".join(rows)


# The kernels of a PTX text.

_BRACE = re.compile(rb"[{}]")
_PTX_KERNEL = re.compile(rb"\.entry\s+([\w$.]+)[^{]*")
_PTX_HEAD = re.compile(rb"^\s*\.version\s+([\d.]+)\s*\.target\s+(sm_\w+)", re.MULTILINE)
_PTX_NOISE = re.compile(rb"//[^\n]*|/\*.*?\*/|[{}]|\$?\w+:(?!:)", re.DOTALL)
_PTX_IDLE = 8192  # bytes of a body that may compute nothing: a message and a trap take 2,000
# They write at most to the thread's own stack; a call must be of printf or assert.
_PTX_HARMLESS = re.compile(
    rb"\s*(?:$|\.|(?:@!?%?\w+\s+)?(?:mov|cvta|cvt|add|sub|mad|or|and|not|setp|selp|ld\.param|ld\.const"
    rb"|st\.local|st\.param|ret|exit|bra|bar|barrier|nanosleep"
    rb"|(?P<message>trap|brkpt|call[^;]*?\b(?:vprintf|__assertfail)\b))\b)"
)
_PTX_LIMIT = re.compile(rb"\.(?:max|req)ntid\s+(\d{1,9})(?:\s*,\s*(\d{1,9}))?(?:\s*,\s*(\d{1,9}))?")


def ptx_head(text: bytes) -> tuple[str, str] | None:
    """The directives ``.version`` and ``.target`` of a PTX text: "9.0", "sm_80"; None without."""
    found = _PTX_HEAD.search(text, 0, 1 << 16)
    return (found[1].decode(), found[2].decode()) if found else None


def _of_ptx(text: bytes) -> Iterator[Kernel]:
    """The kernels of a PTX text (PTX ISA, "Kernel and Function Directives: .entry")."""
    for found in _PTX_KERNEL.finditer(text):
        limit = _PTX_LIMIT.search(found[0])
        threads = math.prod(int(size) for size in limit.groups() if size) if limit else 0
        idle = _ptx_idle(text, found.end())
        yield Kernel(found[1].decode(), 0, 0, 0, None, None, threads, 0, 0, "", idle)


def _ptx_idle(text: bytes, start: int) -> Idle:
    depth, end = 0, 0
    for brace in _BRACE.finditer(text, start, start + _PTX_IDLE):
        depth += 1 if brace[0] == b"{" else -1
        if depth == 0:
            end = brace.end()
            break
    statements = _PTX_NOISE.sub(b" ", text[start:end]).split(b";")
    found = [_PTX_HARMLESS.match(each) for each in statements] if end else [None]
    if not all(found):
        return ""
    return "traps" if any(each and each["message"] for each in found) else "empty"


# The kernels of a cubin.

_RECORD = struct.Struct("<BBH")
_SYMTAB, _SYMTAB_SHNDX, _ENTRY = 2, 18, 0x10
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


def kernels_of(data: bytes, arch: int) -> list[Kernel]:
    """The kernels of a cubin for an architecture (120: 12.0), in the order of its symbols.

    Raises ``MalformedElf`` with the byte of the cubin where it is damaged.
    """
    elf = Elf(io.BytesIO(data))
    if elf.machine != CUDA:
        raise MalformedElf(f"byte 0x0: no cubin: ELF machine {elf.machine}")
    if not elf.sections:
        raise MalformedElf("byte 0x28: a cubin without section headers")
    symbols = _Symbols(elf)
    if not symbols.kernels:
        return []
    figures, shared, attributes = _info(elf, arch)
    marked = elf.abi >= _ANNOTATED_ABI or any(map(_spills, attributes.values()))
    found = []
    for number, (name, place) in symbols.kernels.items():
        section, of = elf.sections[place], attributes.get(place, {})
        code, stack = elf.content(section), figures[_STACK].get(number, 0)
        known = marked or stack == 0
        stores, loads = _spilled(section, code, _spills(of)) if known else (None, None)
        kernel = Kernel(
            name=name,
            # Before CUDA 9 the upper byte of the section's sh_info had them.
            registers=figures[_REGISTERS].get(number, section.info >> 24),
            shared=shared.get(place, 0),
            local=stack,
            spill_stores=stores,
            spill_loads=loads,
            threads=math.prod(of.get(_REQUIRED_THREADS, of.get(_MAX_THREADS, (0,)))),
            cluster=math.prod(of.get(_CLUSTER, (0,))),
            size=len(code),
            digest=hashlib.sha256(code).hexdigest(),
            idle=_idle(code, symbols, of.get(_EXTERNS, ())),
        )
        found.append(kernel)
    return found


class _Symbols:
    """The symbols of a cubin, by their numbers."""

    def __init__(self, elf: Elf) -> None:
        self.names: dict[int, str] = {}
        self.kernels: dict[int, tuple[str, int]] = {}
        """Names and code sections."""
        extended = next((each for each in elf.sections if each.type == _SYMTAB_SHNDX), None)
        places = elf.content(extended) if extended else b""
        functions = set()
        for table in elf.sections:
            for number, each in enumerate(elf.symbols(table) if table.type == _SYMTAB else ()):
                self.names[number] = each.name
                if each.type != FUNCTION or each.section == 0:
                    continue
                place = each.section
                if place == XINDEX and len(places) >= 4 * (number + 1):
                    (place,) = struct.unpack_from("<I", places, 4 * number)
                functions.add(place)
                if each.other & _ENTRY:
                    if place >= len(elf.sections):
                        raise MalformedElf(f"byte {table.offset:#x}: symbol {number} in {place}")
                    self.kernels[number] = each.name, place
        self.others = bool(functions - {place for _, place in self.kernels.values()})
        """Whether there are functions outside of the kernels' own sections."""


def _info(
    elf: Elf, arch: int
) -> tuple[dict[int, dict[int, int]], dict[int, int], dict[int, dict[int, tuple[int, ...]]]]:
    """Registers and stacks by their attribute and the number of a symbol; by the number of a code
    section the static shared memory, and the other attributes."""
    figures: dict[int, dict[int, int]] = {_REGISTERS: {}, _STACK: {}}
    shared: dict[int, int] = {}
    attributes: dict[int, dict[int, tuple[int, ...]]] = {}
    for section in elf.sections:
        if section.type == _INFO and section.name == ".nv.info":
            for attribute, words in _records(elf, section):
                if attribute in figures and len(words) == 2:
                    figures[attribute][words[0]] = words[1]
        elif section.type == _INFO and section.name.startswith(".nv.info."):
            attributes.setdefault(section.info, {}).update(_records(elf, section))
        elif section.type == NOBITS and section.name.startswith(".nv.shared."):
            shared[section.info] = max(0, section.size - (_RESERVED if arch >= 90 else 0))
    return figures, shared, attributes


def _records(elf: Elf, section: Section) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The attributes of a section with their payload as words of 32 bits."""
    data, at = elf.content(section), 0
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


def _spills(attributes: Mapping[int, tuple[int, ...]]) -> list[int]:
    """The offsets of the instructions that spill registers, or refill them."""
    words = attributes.get(_ANNOTATIONS, ())
    return [at for kind, at in zip(words[::2], words[1::2], strict=False) if kind == _SPILL]


def _spilled(section: Section, code: bytes, offsets: Iterable[int]) -> tuple[int, int]:
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


def _idle(code: bytes, symbols: _Symbols, externs: Iterable[int]) -> Idle:
    words = (int.from_bytes(code[at : at + 8], "little") for at in range(0, len(code), 16))
    found = {word & _OPCODE for word in words}
    if not found & {_EXIT, _BPT} or not found <= _HARMLESS:
        return ""
    called = {symbols.names.get(each, "") for each in externs}
    if _CALL_ABS in found and not (called and called <= _MESSAGES):
        return ""
    if _CALL_REL in found and symbols.others:
        return ""
    return "traps" if found & {_BPT, _CALL_ABS} else "empty"
