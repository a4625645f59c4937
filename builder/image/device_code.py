"""The device code of a file, and of two files compared: ELF files, cubins, fat binaries and PTX."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import IO, Literal, TypeVar, cast

from builder.image.code_paths import CodePaths, code_paths
from simulator import fatbin
from simulator.elf import CUDA, MACHINES, NOBITS, Elf, is_elf
from simulator.fatbin import FatbinEntry, Region
from simulator.ledger import kernels_of
from simulator.selection import Capability, Code
from simulator.work import demangled

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
    """One entry of a fat binary; or a cubin or PTX by itself.

    ``module`` is the number of the fat binary in the file, from 1; ``stored`` the sha256 (hex) of
    the payload as it is in the file.
    """

    module: int
    entry: FatbinEntry
    stored: str

    @property
    def code(self) -> str:
        """``sm_120a``, ``compute_120``."""
        return self.entry.code.name


def may_have_code(path: str, head: bytes) -> bool:
    """Whether a file with these first bytes may have device code; of PTX the name decides."""
    return is_elf(head) or head.startswith(fatbin.MAGIC) or path.endswith(".ptx")


def device_entries(stream: IO[bytes]) -> list[ModuleEntry]:
    """The entries of all fat binaries of a file, in file order; none of files without any.

    The file may be an ELF file, a fat binary, a cubin or PTX; each of the last two is one entry.
    """
    found = []
    for number, region in enumerate(_regions(stream), 1):
        for entry in region.entries:
            stream.seek(entry.offset)
            found.append(ModuleEntry(number, entry, _digest(stream.read(entry.stored))))
    return found


def on_card(path: str, stream: IO[bytes] | None) -> CodePaths:
    """What the farm's card does with a file's device code; nothing of an absent file.

    The card has compute capability 12.0; a library of arm64 runs on a GB10, which has 12.1.
    Raises ``MalformedElf``.
    """
    if stream is None:
        return CodePaths(path)
    stream.seek(0)
    arm = is_elf(stream.read(4)) and MACHINES.get(Elf(stream).machine) == "aarch64"
    return code_paths(path, fatbin.modules(_regions(stream)), Capability(12, 1 if arm else 0))


def _regions(stream: IO[bytes]) -> Iterator[Region]:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    head = stream.read(min(size, _PTX_HEAD))
    whole: tuple[int, int, int] = (0, size, size)
    if is_elf(head):
        elf = Elf(stream)
        if elf.machine == CUDA:
            # The place of a cubin's architecture (120: 12.0; 120a and 120f do not differ there)
            # depends on the ABI: EF_CUDA_SM of LLVM's llvm/include/llvm/BinaryFormat/ELF.h.
            arch = (elf.flags >> (8 if elf.abi >= _SHIFTED_ABI else 0)) & 0xFF
            yield Region(0, size, (FatbinEntry(Code("elf", arch), *whole),))
            return
        for section in elf.fatbins():
            end = section.offset + section.size
            yield from fatbin.regions(stream, section.offset, end)
    elif head.startswith(fatbin.MAGIC):
        yield from fatbin.regions(stream, 0, size)
    elif found := _PTX.match(head):
        suffix = cast("Literal['', 'a', 'f']", found[2].decode())
        yield Region(0, size, (FatbinEntry(Code("ptx", int(found[1]), suffix), *whole),))


# The device code of two files: entry by entry, then function by function where entries differ.
# Entries with equal bytes are never unpacked; of the others, one is in memory at a time.

DifferenceState = Literal["added", "removed", "changed"]


def state_of(before: object, after: object) -> DifferenceState:
    """Which of both sides has something, or whether it differs."""
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """A kernel or device function in one of the modules of a file."""

    module: int  # number of the fat binary in the file, from 1
    size: int  # bytes of SASS, or of PTX text
    digest: str  # sha256 (hex) of them
    registers: int | None = None  # for each thread; None for PTX and for device functions
    spills: int | None = None  # bytes of stores and loads; None also where not marked


@dataclass(frozen=True, slots=True)
class FunctionDifference:
    """A kernel or device function, by its demangled name, that differs for one code (``sm_120a``).

    ``parts`` are the parts that differ: ``SASS``, ``PTX``, or sections of the kernel, such as
    ``.nv.info`` and ``.nv.constant0``.
    """

    code: str
    name: str
    before: FunctionCode | None
    after: FunctionCode | None
    parts: tuple[str, ...]

    @property
    def state(self) -> DifferenceState:
        """As ``state_of``."""
        return state_of(self.before, self.after)

    @property
    def more_spills(self) -> int:
        """Bytes of spills that it has more; a side that is absent or not known counts 0."""
        old, new = (side.spills or 0 if side else 0 for side in (self.before, self.after))
        return new - old


@dataclass(frozen=True, slots=True)
class CodeTotals:
    """The fat binary entries of a file for one code; ``equal``: their unpacked bytes are equal."""

    code: str
    before: int
    after: int
    equal: int


@dataclass(frozen=True, slots=True)
class OtherDifference:
    """A difference of so many modules outside of their functions: a section, or PTX; in bytes."""

    code: str
    name: str
    modules: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class CodeDifference:
    """The device code of two files."""

    totals: tuple[CodeTotals, ...]
    functions: tuple[FunctionDifference, ...] = ()
    others: tuple[OtherDifference, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every entry has an equal one in the other file, byte for byte."""
        return all(each.before == each.after == each.equal for each in self.totals)


T = TypeVar("T")
PTX, SASS = "PTX", "SASS"
TEXT = ".text."  # a function's name follows, in the name of its section of code
OUTSIDE = "PTX outside of functions"
_TOP = re.compile(rb'//[^\n]*|/\*.*?\*/|"[^"]*"|[{};]', re.DOTALL)
_FUNCTION = re.compile(
    rb"(?:\.(?:visible|weak|extern)\s+)*"
    rb"\.(?:entry|func\b\s*(?:\.noreturn\b\s*)?(?:\([^)]*\))?)\s*([\w$.]+)"
)
Function = tuple[FunctionCode, Mapping[str, str]]  # with digests of its compared parts


@dataclass(slots=True)
class _Side:
    """The parts of one file's entries for one code that have no equal in the other file."""

    functions: dict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    others: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))


def compare_code(before: IO[bytes] | None, after: IO[bytes] | None) -> CodeDifference | None:
    """The difference of two files' device code, None for an absent file; None: neither has any."""
    old = device_entries(before) if before else []
    new = device_entries(after) if after else []
    if not old and not new:
        return None
    left, right = left_over(old, new, lambda each: (each.code, each.stored))
    if before and after:
        digests = {
            # What is not compressed is padded with zeros.
            id(each): _digest(each.entry.payload(stream).rstrip(b"\0"))
            for stream, entries in ((before, left), (after, right))
            for each in entries
        }
        left, right = left_over(left, right, lambda each: (each.code, digests[id(each)]))
    was, now, unequal = (Counter(each.code for each in of) for of in (old, new, left))
    totals = tuple(
        CodeTotals(code, was[code], now[code], was[code] - unequal[code])
        for code in sorted(was.keys() | now.keys())
    )
    if before is None or after is None or not (left or right):
        return CodeDifference(totals)
    both = {each.code for each in totals if each.before and each.after}
    return _by_code(totals, _sides(before, left, both), _sides(after, right, both))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def left_over(
    before: Iterable[T], after: Iterable[T], facts: Callable[[T], Hashable]
) -> tuple[list[T], list[T]]:
    """The members of each side that no equal member of the other one is left for."""
    sides = [*before], [*after]
    found: tuple[list[T], list[T]] = ([], [])
    for these, those, left in ((*sides, found[0]), (*sides[::-1], found[1])):
        counts = Counter(map(facts, those))
        for each in these:
            if counts[facts(each)]:
                counts[facts(each)] -= 1
            else:
                left.append(each)
    return found


def _sides(
    stream: IO[bytes], unequal: Sequence[ModuleEntry], codes: Collection[str]
) -> dict[str, _Side]:
    found: dict[str, _Side] = defaultdict(_Side)
    for each in unequal:
        if each.code in codes:
            payload = each.entry.payload(stream)
            read = _read_ptx if each.entry.code.kind == "ptx" else _read_cubin
            read(payload, each, found[each.code])
    return found


def _read_ptx(payload: bytes, of: ModuleEntry, side: _Side) -> None:
    functions, outside = split_ptx(payload.rstrip(b"\0"))
    for name, text in functions:
        digest = _digest(text)
        code = FunctionCode(of.module, len(text), digest)
        side.functions[demangled(name)].append((code, {PTX: digest}))
    side.others[OUTSIDE].append((_digest(outside), len(outside)))


def split_ptx(text: bytes) -> tuple[list[tuple[str, bytes]], bytes]:
    """The functions with a body, in order, and all of the text that is outside of them.

    A function is its mangled name and its text, which begins with its linkage (PTX ISA, "Kernel and
    Function Directives").
    """
    functions: list[tuple[str, bytes]] = []
    others: list[bytes] = []
    start = at = done = 0
    while (token := _TOP.search(text, at)) is not None:
        at = token.end()
        if token[0] == b"{":
            at = _closing(text, at)
            found = _FUNCTION.search(text, start, token.start())
            if found is not None:
                others.append(text[done : found.start()])
                functions.append((found[1].decode(errors="replace"), text[found.start() : at]))
                done = at
        if token[0] in (b"{", b";"):
            start = at
    others.append(text[done:])
    return functions, b"".join(others)


def _closing(text: bytes, at: int) -> int:
    """The byte after the brace that closes one before ``at``; comments have no braces."""
    depth = 1
    while depth:
        end = text.find(b"}", at)
        if end < 0:
            return len(text)
        depth += text.count(b"{", at, end) - 1
        at = end + 1
    return at


def _read_cubin(payload: bytes, of: ModuleEntry, side: _Side) -> None:
    """The sections of each function by the name without the function's; and all others."""
    elf = Elf(io.BytesIO(payload))
    sections = elf.sections[1:]
    texts = {each.name.removeprefix(TEXT): each for each in sections if each.name.startswith(TEXT)}
    parts: dict[str, dict[str, str]] = defaultdict(dict)
    for section in sections:
        # A section without bytes in the file counts by its size.
        digest = f"{section.size}" if section.type == NOBITS else elf.digest(section)
        part, name = _owned(section.name, texts)
        if name is None:
            side.others[part].append((digest, section.size))
        else:
            parts[name][SASS if part + "." == TEXT else part] = digest
    kernels = {each.name: each for each in kernels_of(payload, of.entry.code.arch)}
    for name, text in texts.items():
        code = FunctionCode(of.module, text.size, parts[name][SASS])
        if name in kernels:
            kernel = kernels[name]
            code = replace(code, registers=kernel.registers, spills=kernel.spills)
        side.functions[demangled(name)].append((code, parts[name]))


def _owned(name: str, functions: Collection[str]) -> tuple[str, str | None]:
    """A section's name without its function's, and the function; None: it belongs to none."""
    at = name.find(".", 1)
    while at > 0:
        if name[at + 1 :] in functions:
            return name[:at], name[at + 1 :]
        at = name.find(".", at + 1)
    return name, None


def _by_code(
    totals: tuple[CodeTotals, ...], before: Mapping[str, _Side], after: Mapping[str, _Side]
) -> CodeDifference:
    functions: list[FunctionDifference] = []
    others: list[OtherDifference] = []
    for code in sorted(before.keys() | after.keys()):
        old, new = before.get(code, _Side()), after.get(code, _Side())
        for name in sorted(old.functions.keys() | new.functions.keys()):
            sides = old.functions.get(name, ()), new.functions.get(name, ())
            unequal = left_over(*sides, lambda each: frozenset(each[1].items()))
            for one, other in zip_longest(*unequal):
                functions.append(_difference(code, name, one, other))
        for name in {**old.others, **new.others}:
            left, right = left_over(old.others[name], new.others[name], tuple)
            if left or right:
                modules = max(len(left), len(right))
                sizes = [sum(size for _, size in side) for side in (left, right)]
                others.append(OtherDifference(code, name, modules, *sizes))
    return CodeDifference(totals, tuple(functions), tuple(others))


def _difference(
    code: str, name: str, before: Function | None, after: Function | None
) -> FunctionDifference:
    old, was = before or (None, {})
    new, now = after or (None, {})
    parts = [part for part in {**was, **now} if was.get(part) != now.get(part)]
    return FunctionDifference(code, name, old, new, tuple(parts) if before and after else ())
