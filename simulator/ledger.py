"""The kernels of a library: its fat binaries, and what a card takes of each.

Only the code that cards of its major version take is unpacked, one fat binary after the other: a
library of 159 MB with 6,731 kernels for 12.0 takes 1.7 s and 40 MB of memory.
"""

from __future__ import annotations

import hashlib
import math
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from simulator import cubin, fatbin, library
from simulator.cubin import Kernel
from simulator.elf import MalformedElf
from simulator.fatbin import Code, FatbinEntry
from simulator.selection import Capability, preferred, taken

NONE = "none"
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
MINORS = 4  # minor versions of a family of cards that are looked at: 12.0, 12.1, ...
_PTX_LIMIT = re.compile(rb"\.(?:max|req)ntid\s+(\d{1,9})(?:\s*,\s*(\d{1,9}))?(?:\s*,\s*(\d{1,9}))?")


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
    """The directive ``.version`` of PTX: "9.0"."""
    target: str = ""
    """The directive ``.target`` of PTX: "sm_80"."""

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
        offered = map(Code.named, self.offered)
        code = preferred((*(each.code for each in self.bodies), *offered), card)
        return next((each for each in self.bodies if each.code == code), None)


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


def read(stream: BinaryIO, card: Capability) -> Iterator[FatBinary]:
    """The fat binaries of the ELF file open in ``stream``, in file order; none if it has no code.

    Raises ``MalformedElf`` with the byte of the file where it is damaged.
    """
    for section in library.loaded_fatbins(stream):
        end = section.offset + section.size
        for region in fatbin.regions(stream, section.offset, end):
            if region.entries:
                address = section.address + region.offset - section.offset
                yield _fat_binary(stream, region, address, card)


def _fat_binary(
    stream: BinaryIO, region: fatbin.Region, address: int, card: Capability
) -> FatBinary:
    entry = taken(region.entries, card)
    offered = tuple(dict.fromkeys(each.code.name for each in region.entries))
    cards = [card, *(Capability(card.major, minor) for minor in range(MINORS))]
    first = {each.code: each for each in reversed(region.entries)}
    wanted = dict.fromkeys(filter(None, (preferred(first, each) for each in cards)))
    payloads = {code: first[code].payload(stream) for code in wanted}
    kernels = {code: _kernels(first[code], payloads[code]) for code in wanted}
    bodies = tuple(_body(code, payloads[code], found) for code, found in kernels.items())
    if any(kernel.idle for found in kernels.values() for kernel in found):
        others = [code for code in first if code.arch // 10 == card.major and code not in kernels]
        kernels |= {code: _kernels(first[code], first[code].payload(stream)) for code in others}
        bodies = tuple(replace(each, hollow=_hollow(each.code, kernels)) for each in bodies)
    if entry is None:
        return FatBinary(address, NONE, offered=offered, bodies=bodies)
    code, payload = entry.code, payloads[entry.code]
    digest = hashlib.sha256(payload).hexdigest() if code.kind == "elf" else ""
    return FatBinary(address, code.name, tuple(kernels[code]), offered, digest, bodies)


def _kernels(entry: FatbinEntry, payload: bytes) -> list[Kernel]:
    if entry.code.kind == "ptx":
        return [*_of_ptx(payload)]
    try:
        return cubin.kernels(payload, entry.code.arch)
    except MalformedElf as error:
        raise MalformedElf(
            f"cubin for {entry.code.name} at byte {entry.offset:#x}: {error}"
        ) from error


def _body(code: Code, payload: bytes, kernels: Sequence[Kernel]) -> Body:
    counts = Counter(kernel.idle for kernel in kernels)
    version, target = (ptx_head(payload) or ("", "")) if code.kind == "ptx" else ("", "")
    return Body(
        code, len(kernels), counts["traps"], counts["empty"], version=version, target=target
    )


def ptx_head(text: bytes) -> tuple[str, str] | None:
    """The directives ``.version`` and ``.target`` of a PTX text: "9.0", "sm_80"; None without."""
    found = _PTX_HEAD.search(text, 0, 1 << 16)
    return (found[1].decode(), found[2].decode()) if found else None


def _hollow(code: Code, kernels: Mapping[Code, Sequence[Kernel]]) -> tuple[str, ...]:
    """The idle kernels of a code that compute in another one for the same major version."""
    family = (found for each, found in kernels.items() if each.arch // 10 == code.arch // 10)
    computing = {kernel.name for found in family for kernel in found if not kernel.idle}
    return tuple(each.name for each in kernels[code] if each.idle and each.name in computing)


def _of_ptx(text: bytes) -> Iterator[Kernel]:
    """The kernels of a PTX text (PTX ISA, "Kernel and Function Directives: .entry")."""
    for found in _PTX_KERNEL.finditer(text):
        limit = _PTX_LIMIT.search(found[0])
        threads = math.prod(int(size) for size in limit.groups() if size) if limit else 0
        idle = _idle(text, found.end())
        yield Kernel(found[1].decode(), 0, 0, 0, None, None, threads, 0, 0, "", idle)


def _idle(text: bytes, start: int) -> cubin.Idle:
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
