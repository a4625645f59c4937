"""The device code of two files: entry by entry, then function by function where entries differ.

Entries with equal bytes in the file are never unpacked; of the others, one is in memory at a time.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import IO, TypeVar

from builder.compare import ptx, sass
from builder.compare.entries import ModuleEntry, entries
from builder.compare.results import (
    CodeDifference,
    CodeTotals,
    FunctionCode,
    FunctionDifference,
    OtherDifference,
)
from builder.tools.demangle import demangled

T = TypeVar("T")
PTX, SASS = "PTX", "SASS"
OUTSIDE = "PTX outside of functions"


@dataclass(frozen=True, slots=True)
class _Function:
    """A function, with digests of its compared parts."""

    code: FunctionCode
    parts: Mapping[str, str]


@dataclass(slots=True)
class _Side:
    """The parts of one file's entries for one code that have no equal in the other file."""

    functions: dict[str, list[_Function]] = field(default_factory=lambda: defaultdict(list))
    others: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))


def compare_code(before: IO[bytes] | None, after: IO[bytes] | None) -> CodeDifference | None:
    """The difference of two files' device code; None where neither has any.

    A file that does not exist is None.  Raises one of ``MALFORMED``.
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
    totals = _totals(old, new, left)
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


def _totals(
    before: Sequence[ModuleEntry], after: Sequence[ModuleEntry], unequal: Sequence[ModuleEntry]
) -> tuple[CodeTotals, ...]:
    old, new, left = (Counter(each.code for each in of) for of in (before, after, unequal))
    return tuple(
        CodeTotals(code, old[code], new[code], old[code] - left[code])
        for code in sorted(old.keys() | new.keys())
    )


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
    functions, outside = ptx.split(payload.rstrip(b"\0"))
    for each in functions:
        digest = _digest(each.text)
        function = _Function(FunctionCode(of.module, len(each.text), digest), {PTX: digest})
        side.functions[demangled(each.name)].append(function)
    side.others[OUTSIDE].append((_digest(outside), len(outside)))


def _read_cubin(payload: bytes, of: ModuleEntry, side: _Side) -> None:
    functions, others = sass.split(payload, of.entry.code.arch)
    for each in functions:
        parts = {
            SASS if part == sass.CODE else part: digest for part, digest in each.sections.items()
        }
        code = FunctionCode(of.module, each.size, parts[SASS])
        if each.kernel:
            code = replace(code, registers=each.kernel.registers, spills=each.kernel.spills)
        side.functions[demangled(each.name)].append(_Function(code, parts))
    for name, digest, size in others:
        side.others[name].append((digest, size))


def _by_code(
    totals: tuple[CodeTotals, ...], before: Mapping[str, _Side], after: Mapping[str, _Side]
) -> CodeDifference:
    functions: list[FunctionDifference] = []
    others: list[OtherDifference] = []
    for code in sorted(before.keys() | after.keys()):
        old, new = before.get(code, _Side()), after.get(code, _Side())
        pairs = differing(old.functions, new.functions, _facts)
        functions += (_difference(code, *pair) for pair in pairs)
        others += _unequal_others(code, old, new)
    return CodeDifference(totals, tuple(functions), tuple(others))


def _facts(function: _Function) -> frozenset[tuple[str, str]]:
    return frozenset(function.parts.items())


def _difference(
    code: str, name: str, before: _Function | None, after: _Function | None
) -> FunctionDifference:
    old, new = before.code if before else None, after.code if after else None
    if before is None or after is None:
        return FunctionDifference(code, name, old, new, ())
    parts = tuple(
        part
        for part in {**before.parts, **after.parts}
        if before.parts.get(part) != after.parts.get(part)
    )
    return FunctionDifference(code, name, old, new, parts)


def _unequal_others(code: str, before: _Side, after: _Side) -> Iterator[OtherDifference]:
    for name in {**before.others, **after.others}:
        old, new = before.others[name], after.others[name]
        left, right = left_over(old, new, tuple), left_over(new, old, tuple)
        if left or right:
            modules = max(len(left), len(right))
            sizes = [sum(size for _, size in side) for side in (left, right)]
            yield OtherDifference(code, name, modules, *sizes)


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
