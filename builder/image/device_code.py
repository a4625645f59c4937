"""The device code of two files: entry by entry, then function by function where entries differ.

Entries with equal bytes in the file are never unpacked; of the others, one is in memory at a time.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import IO, TypeVar

from builder.image.compare_entries import ModuleEntry, entries
from builder.image.results import (
    CodeDifference,
    CodeTotals,
    FunctionCode,
    FunctionDifference,
    OtherDifference,
)
from simulator import cubin
from simulator.demangle import demangled
from simulator.elf import NOBITS, Elf

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
    old = entries(before) if before else []
    new = entries(after) if after else []
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
    kernels = {each.name: each for each in cubin.kernels(payload, of.entry.code.arch)}
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
