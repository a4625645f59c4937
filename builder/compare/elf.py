"""Two ELF files: how they link, their dynamic symbols, and their sections."""

from __future__ import annotations

from collections import defaultdict
from itertools import zip_longest
from typing import BinaryIO

from builder.compare.results import ElfDifference, SectionDifference, ValueDifference
from builder.tools import elf
from builder.tools.elf import MalformedElf
from builder.tools.elf_sections import ElfSections, Section


def compare_elf(before: BinaryIO, after: BinaryIO) -> ElfDifference:
    """The difference of two ELF files.  Raises ``MalformedElf`` where one is damaged."""
    old, new = ElfSections(before), ElfSections(after)
    was, now = old.symbols(), new.symbols()
    return ElfDifference(
        tuple(_values(_linking(before, old), _linking(after, new))),
        tuple(sorted(now - was)),
        tuple(sorted(was - now)),
        tuple(_sections(old, new)),
    )


def _linking(stream: BinaryIO, sections: ElfSections) -> dict[str, tuple[str, ...]]:
    found = elf.read(stream)
    if found is None:
        raise MalformedElf("byte 0x0: no ELF header")
    single = {
        "machine": found.machine,
        "type": found.type,
        "interpreter": found.interpreter,
        "soname": found.soname,
        "build id": sections.build_id(),
    }
    return {name: (value,) if value else () for name, value in single.items()} | {
        "needed": found.needed,
        "runpath": found.runpath,
        "rpath": found.rpath,
    }


def _values(
    before: dict[str, tuple[str, ...]], after: dict[str, tuple[str, ...]]
) -> list[ValueDifference]:
    return [
        ValueDifference(name, value, after[name])
        for name, value in before.items()
        if value != after[name]
    ]


def _sections(before: ElfSections, after: ElfSections) -> list[SectionDifference]:
    """The sections that differ; of several with one name, the first is compared with the first."""
    old, new = _by_name(before), _by_name(after)
    found = []
    for name in {**old, **new}:
        for one, other in zip_longest(old[name], new[name]):
            if one is None or other is None or not _equal(before, one, after, other):
                sizes = (each.size if each else None for each in (one, other))
                found.append(SectionDifference(name, *sizes))
    return found


def _by_name(sections: ElfSections) -> dict[str, list[Section]]:
    found: dict[str, list[Section]] = defaultdict(list)
    for section in sections.all:
        found[section.name].append(section)
    return found


def _equal(before: ElfSections, one: Section, after: ElfSections, other: Section) -> bool:
    if (one.size, one.type) != (other.size, other.type):
        return False
    return all(a == b for a, b in zip(before.blocks(one), after.blocks(other), strict=True))
