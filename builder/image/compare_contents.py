"""Two files with different content: where they differ, and how ELF files and device code do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from builder.image.compare_entries import on_card
from builder.image.device_code import compare_code
from builder.image.results import Difference, ElfDifference, FileDifference
from simulator.elf import Elf, MalformedElf, Section, is_elf
from simulator.library import linking, versioned_symbols

BLOCK = 1 << 20
LARGEST_TEXT = 1 << 20  # bytes of a file whose lines are compared
LONGEST_LINE = 200  # characters that are kept of one


def compare_contents(of: FileDifference, before: Path | None, after: Path | None) -> FileDifference:
    """The difference of a path, with the differences of its content; an absent file is None."""
    with ExitStack() as stack:
        old = stack.enter_context(before.open("rb")) if before else None
        new = stack.enter_context(after.open("rb")) if after else None
        elves = [is_elf(_head(each)) for each in (old, new) if each]
        try:
            if old and new and all(elves):
                of = replace(of, elf=compare_elf(old, new))
            of = replace(of, code=compare_code(old, new))
            if of.code:
                of = replace(of, on_card=(on_card(of.path, old), on_card(of.path, new)))
        except MalformedElf as error:
            return replace(of, unread=str(error))
    if any(elves):
        return of
    if before and after and max(each.stat().st_size for each in (before, after)) <= LARGEST_TEXT:
        return replace(of, lines=_lines(before.read_bytes(), after.read_bytes()))
    return of


def _head(stream: BinaryIO) -> bytes:
    stream.seek(0)
    return stream.read(4)


def _lines(before: bytes, after: bytes) -> tuple[str, str] | None:
    try:
        texts = before.decode(), after.decode()
    except UnicodeDecodeError:
        return None
    if any("\0" in text for text in texts):
        return None
    old, new = ([*text.splitlines(), ""] for text in texts)
    one, other = next(((a, b) for a, b in zip(old, new, strict=False) if a != b), ("", ""))
    return one[:LONGEST_LINE], other[:LONGEST_LINE]


def compare_elf(before: BinaryIO, after: BinaryIO) -> ElfDifference:
    """The difference of two ELF files.  Raises ``MalformedElf`` where one is damaged."""
    old, new = Elf(before), Elf(after)
    was, now = versioned_symbols(old), versioned_symbols(new)
    values = zip(_linking(old).items(), _linking(new).values(), strict=True)
    return ElfDifference(
        tuple(Difference(name, value, other) for (name, value), other in values if value != other),
        tuple(sorted(now - was)),
        tuple(sorted(was - now)),
        tuple(_sections(old, new)),
    )


def _linking(elf: Elf) -> dict[str, tuple[str, ...]]:
    found = linking(elf)
    single = {
        "machine": found.machine,
        "type": found.type,
        "interpreter": found.interpreter,
        "soname": found.soname,
        "build id": elf.build_id(),
    }
    return {name: (value,) if value else () for name, value in single.items()} | {
        "needed": found.needed,
        "runpath": found.runpath,
        "rpath": found.rpath,
    }


def _sections(before: Elf, after: Elf) -> Iterator[Difference[int | None]]:
    """The sections that differ; of several with one name, the first is compared with the first."""
    by_name: dict[str, tuple[list[Section], list[Section]]] = defaultdict(lambda: ([], []))
    for side, elf in enumerate((before, after)):
        for section in elf.sections[1:]:
            by_name[section.name][side].append(section)
    for name, sides in by_name.items():
        for one, other in zip_longest(*sides):
            if one is None or other is None or not _equal(before, one, after, other):
                yield Difference(name, one and one.size, other and other.size)


def _equal(before: Elf, one: Section, after: Elf, other: Section) -> bool:
    if (one.size, one.type) != (other.size, other.type):
        return False
    return all(a == b for a, b in zip(before.blocks(one), after.blocks(other), strict=True))
