"""Where two runs of a program on simulated cards part: the first launch that stored other bytes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from simulator.demangle import demangled, function_of
from simulator.report import Report


def parting(once: Report | None, again: Report | None, other: Report | None) -> str:
    """The first launch of ``other`` that differs from two equal runs of a program.

    Empty: no known launch differs, or a run has no report.
    """
    if once is None or again is None or other is None:
        return ""
    if first_difference(once, again):
        return "not known: the program stores other bytes in each run"
    return first_difference(once, other)


def first_difference(before: Report, after: Report) -> str:
    """The first launch that is not the same in both runs; empty: all known ones are.

    Both ran with checksums (``cards.Compute``).  The launch read the same values, unless the
    program itself gave its kernels other memory, such as random numbers.
    """
    pairs = zip_longest(_launches(before), _launches(after))
    for number, (one, other) in enumerate(pairs, start=1):
        if one == other:
            continue
        name, another = (function_of(each[0]) if each else "none" for each in (one, other))
        if one and other and one[0] == other[0]:
            return f"launch {number}, {name}, stores other bytes"
        return f"launch {number} is of other kernels: {name}, {another}"
    return ""


def _launches(report: Report) -> Iterator[tuple[str, int]]:
    """The kernel's demangled name, and the checksum, of each launch; mangled names have hashes."""
    names = [demangled(each.kernel) for each in report.launches]
    return ((names[each.launch], each.checksum) for each in report.outputs)
