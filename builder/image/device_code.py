"""The device code of two files: entry by entry, then function by function where entries differ.

Entries with equal bytes in the file are never unpacked; of the others, one is in memory at a time.
"""

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
from builder.image.results import (
    CodeDifference,
    CodeTotals,
    FunctionCode,
    FunctionDifference,
    OtherDifference,
)
from simulator import fatbin, ledger
from simulator.elf import CUDA, MACHINES, NOBITS, Elf, is_elf
from simulator.fatbin import FatbinEntry, Region
from simulator.selection import Capability, Code
from simulator.work import demangled

# The device code of a file: ELF files, cubins, fat binaries and PTX.

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


def device_entries(stream: IO[bytes]) -> list[ModuleEntry]:
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
    return code_paths(path, fatbin.modules(_regions(stream)), _card(stream))


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


# Entries, then functions.

T = TypeVar("T")
PTX, SASS = "PTX", "SASS"
TEXT = ".text."  # a function's name follows, in the name of its section of code
OUTSIDE = "PTX outside of functions"
_TOP = re.compile(rb'//[^\n]*|/\*.*?\*/|"[^"]*"|[{};]', re.DOTALL)
_FUNCTION = re.compile(
    rb"(?:\.(?:visible|weak|extern)\s+)*"
    rb"\.(?:entry|func\b\s*(?:\.noreturn\b\s*)?(?:\([^)]*\))?)\s*([\w$.]+)"
)


Function = tuple[FunctionCode, Mapping[str, str]]
"""With digests of its compared parts."""


@dataclass(slots=True)
class _Side:
    """The parts of one file's entries for one code that have no equal in the other file."""

    functions: dict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    others: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))


def compare_code(before: IO[bytes] | None, after: IO[bytes] | None) -> CodeDifference | None:
    """The difference of two files' device code; None where neither has any.

    A file that does not exist is None.  Raises ``MalformedElf``.
    """
    old = device_entries(before) if before else []
    new = device_entries(after) if after else []
    if not old and not new:
        return None
    left, right = _unequal(old, new, {id(each): each.stored for each in (*old, *new)})
    if before and after:
        # What is not compressed is padded with zeros.
        digests = {id(each): _digest(each.entry.payload(before).rstrip(b"\0")) for each in left}
        digests |= {id(each): _digest(each.entry.payload(after).rstrip(b"\0")) for each in right}
        left, right = _unequal(left, right, digests)
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


def _unequal(
    before: Sequence[ModuleEntry], after: Sequence[ModuleEntry], digests: Mapping[int, str]
) -> tuple[list[ModuleEntry], list[ModuleEntry]]:
    """The entries of each side that have no equal one for the same code on the other side."""

    def facts(each: ModuleEntry) -> tuple[str, str]:
        return each.code, digests[id(each)]

    return left_over(before, after, facts), left_over(after, before, facts)


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
    done = 0
    for start, brace, end in _blocks(text):
        found = _FUNCTION.search(text, start, brace)
        if found is not None:
            others.append(text[done : found.start()])
            name = found[1].decode(errors="replace")
            functions.append((name, text[found.start() : end]))
            done = end
    others.append(text[done:])
    return functions, b"".join(others)


def _blocks(text: bytes) -> Iterator[tuple[int, int, int]]:
    start = at = 0
    while (token := _TOP.search(text, at)) is not None:
        at = token.end()
        if token[0] == b"{":
            at = _closing(text, at)
            yield start, token.start(), at
        if token[0] in (b"{", b";"):
            start = at


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
    kernels = {each.name: each for each in ledger.kernels_of(payload, of.entry.code.arch)}
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
        pairs = differing(old.functions, new.functions, lambda each: frozenset(each[1].items()))
        functions += (_difference(code, *pair) for pair in pairs)
        for name in {**old.others, **new.others}:
            left = left_over(old.others[name], new.others[name], tuple)
            right = left_over(new.others[name], old.others[name], tuple)
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


def left_over(these: Iterable[T], those: Iterable[T], facts: Callable[[T], Hashable]) -> list[T]:
    """The members of ``these`` that no equal member of ``those`` is left for."""
    counts = Counter(map(facts, those))
    found = []
    for each in these:
        if counts[facts(each)]:
            counts[facts(each)] -= 1
        else:
            found.append(each)
    return found


def differing(
    before: Mapping[str, Sequence[T]],
    after: Mapping[str, Sequence[T]],
    facts: Callable[[T], Hashable],
) -> Iterator[tuple[str, T | None, T | None]]:
    """The pairs of a name that differ in ``facts``, by their names; None: it has no counterpart."""
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, ()), after.get(name, ())
        pairs = zip_longest(left_over(old, new, facts), left_over(new, old, facts))
        yield from ((name, *pair) for pair in pairs)
