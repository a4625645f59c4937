"""The device code of two files: entry by entry, then function by function where entries differ.

Entries with equal bytes in the file are never unpacked; of the others, one is in memory at a time.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import IO, Literal

from builder.compare import ptx, sass
from builder.compare.entries import ModuleEntry, entries
from builder.compare.results import (
    CodeDifference,
    CodeTotals,
    FunctionCode,
    FunctionDifference,
    OtherDifference,
    Signs,
)
from builder.tools.demangle import demangled

PTX, SASS = "PTX", "SASS"
OUTSIDE = "PTX outside of functions"


@dataclass(frozen=True, slots=True)
class _Function:
    """A function with digests of what is compared."""

    name: str
    code: FunctionCode
    parts: Mapping[str, str]
    named: str = ""
    """Digest of PTX without the names that nvcc makes up."""
    unsigned: str = ""
    """Digest of that without signs of types."""
    loads: tuple[int, int] = (0, 0)
    """Signed and unsigned 8-bit loads."""


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

    def key(each: ModuleEntry) -> tuple[str, str]:
        return each.code, digests[id(each)]

    def left_over(these: Sequence[ModuleEntry], those: Sequence[ModuleEntry]) -> list[ModuleEntry]:
        counts = Counter(map(key, those))
        found = []
        for each in these:
            if counts[key(each)]:
                counts[key(each)] -= 1
            else:
                found.append(each)
        return found

    return left_over(before, after), left_over(after, before)


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
    """The parts of the entries for these codes, by their code."""
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
        text, digest = each.text, _digest(each.text)
        named = ptx.without_made_up_names(text)
        name = demangled(each.name)
        side.functions[name].append(
            _Function(
                name,
                FunctionCode(of.module, len(text), digest),
                {PTX: digest},
                _digest(named),
                _digest(ptx.without_signs(named)),
                ptx.byte_loads(text),
            )
        )
    side.others[OUTSIDE].append((_digest(outside), len(outside)))


def _read_cubin(payload: bytes, of: ModuleEntry, side: _Side) -> None:
    functions, others = sass.split(payload, of.entry.code.arch)
    for each in functions:
        name = demangled(each.name)
        parts = {
            SASS if part == sass.CODE else part: digest for part, digest in each.sections.items()
        }
        code = FunctionCode(of.module, each.size, parts[SASS], each.registers)
        side.functions[name].append(_Function(name, code, parts, loads=each.loads))
    for name, digest, size in others:
        side.others[name].append((digest, size))


def _by_code(
    totals: tuple[CodeTotals, ...], before: Mapping[str, _Side], after: Mapping[str, _Side]
) -> CodeDifference:
    functions: list[FunctionDifference] = []
    others: list[OtherDifference] = []
    signs: list[Signs] = []
    for code in sorted(before.keys() | after.keys()):
        old, new = before.get(code, _Side()), after.get(code, _Side())
        pairs = list(_unequal_functions(old, new))
        functions += (_difference(code, *pair) for pair in pairs)
        others += _unequal_others(code, old, new)
        signs += _moved_signs(code, pairs)
    return CodeDifference(totals, tuple(functions), tuple(others), tuple(signs))


_Pair = tuple[_Function | None, _Function | None]


def _unequal_functions(before: _Side, after: _Side) -> Iterator[_Pair]:
    """The functions of a name that differ; a template may be compiled in several modules."""
    for name in sorted(before.functions.keys() | after.functions.keys()):
        old, new = before.functions[name], list(after.functions[name])
        left = []
        for each in old:
            same = next((other for other in new if other.parts == each.parts), None)
            if same is None:
                left.append(each)
            else:
                new.remove(same)
        yield from zip_longest(left, new)


def _difference(code: str, before: _Function | None, after: _Function | None) -> FunctionDifference:
    name = before.name if before else after.name if after else ""
    old, new = before.code if before else None, after.code if after else None
    if before is None or after is None:
        return FunctionDifference(code, name, old, new, ())
    parts = tuple(
        part
        for part in {**before.parts, **after.parts}
        if before.parts.get(part) != after.parts.get(part)
    )
    return FunctionDifference(code, name, old, new, parts, _cause(before, after))


def _cause(before: _Function, after: _Function) -> Literal["", "signedness", "names"]:
    if before.named and before.named == after.named:
        return "names"
    if (before.unsigned and before.unsigned == after.unsigned) or _moved(before, after):
        return "signedness"
    return ""


def _moved(before: _Function, after: _Function) -> bool:
    """Whether as many 8-bit loads are there, and some are signed on one side only."""
    return before.loads != after.loads and sum(before.loads) == sum(after.loads)


def _moved_signs(code: str, pairs: Sequence[_Pair]) -> Iterator[Signs]:
    """The 8-bit loads of the functions that differ in their signs."""
    moved = [(*old.loads, *new.loads) for old, new in pairs if old and new and _moved(old, new)]
    if moved:
        yield Signs(code, *(sum(counts) for counts in zip(*moved, strict=True)))


def _unequal_others(code: str, before: _Side, after: _Side) -> Iterator[OtherDifference]:
    for name in {**before.others, **after.others}:
        old, new = Counter(before.others[name]), Counter(after.others[name])
        left, right = list((old - new).elements()), list((new - old).elements())
        if left or right:
            modules = max(len(left), len(right))
            sizes = [sum(size for _, size in side) for side in (left, right)]
            yield OtherDifference(code, name, modules, *sizes)
