"""Two ledgers compared: kernels that were added, are gone, or changed.

Kernels are matched by the name of their library without its version, and by their demangled name:
mangled names of functions with internal linkage contain a hash that changes with every build.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from builder.kernels.ledger import Library
from builder.tools.cubin import Kernel
from builder.tools.demangle import demangled

State = Literal["added", "gone", "changed"]


@dataclass(frozen=True, slots=True)
class Change:
    """A kernel that differs between two images."""

    library: str
    """Without its directory and version."""
    name: str
    """Demangled."""
    before: Kernel | None
    after: Kernel | None

    @property
    def state(self) -> State:
        """What happened to it."""
        if self.before is None:
            return "added"
        return "gone" if self.after is None else "changed"

    @property
    def spills(self) -> int:
        """Bytes of spills that it has more; a kernel that is not there, or unknown, counts 0."""
        return _spills(self.after) - _spills(self.before)

    @property
    def registers(self) -> int:
        """Registers that a changed kernel takes more; 0 for an added one and one that is gone."""
        if self.before is None or self.after is None:
            return 0
        return self.after.registers - self.before.registers


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over the kernels of a library."""

    kernels: int = 0
    spilling: int = 0
    """Kernels with spills."""
    spills: int = 0
    """Bytes of all spill stores and loads."""
    size: int = 0
    """Bytes of SASS."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One library, or several with the same name, in two images."""

    library: str
    before: Totals
    after: Totals
    changes: tuple[Change, ...]
    """Those that spill more first."""

    def count(self, state: State) -> int:
        """The number of kernels that were added, are gone, or changed."""
        return sum(change.state == state for change in self.changes)


def compare(before: Sequence[Library], after: Sequence[Library]) -> list[Comparison]:
    """The libraries of two images by name; those that are equal have no changes."""
    old, new = _by_name(before), _by_name(after)
    found = []
    for name in sorted(old.keys() | new.keys()):
        changes = sorted(_changes(name, old[name], new[name]), key=_order)
        found.append(Comparison(name, totals(old[name]), totals(new[name]), tuple(changes)))
    return found


def totals(kernels: Sequence[Kernel]) -> Totals:
    """The sums over these kernels."""
    spills = [_spills(kernel) for kernel in kernels]
    size = sum(kernel.size for kernel in kernels)
    return Totals(len(kernels), sum(map(bool, spills)), sum(spills), size)


def library_name(path: str) -> str:
    """The name of a library without its directory and version: ``libggml-cuda.so``."""
    name, suffix, _ = posixpath.basename(path).partition(".so")
    return name + suffix


def _by_name(libraries: Sequence[Library]) -> dict[str, list[Kernel]]:
    found: dict[str, list[Kernel]] = defaultdict(list)
    for library in libraries:
        found[library_name(library.path)] += library.kernels
    return found


def _changes(library: str, old: Sequence[Kernel], new: Sequence[Kernel]) -> Iterator[Change]:
    before, after = _by_kernel(old), _by_kernel(new)
    for name in before.keys() | after.keys():
        for was, now in _pairs(before[name], after[name]):
            yield Change(library, name, was, now)


def _by_kernel(kernels: Sequence[Kernel]) -> dict[str, list[Kernel]]:
    found: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        found[demangled(kernel.name)].append(kernel)
    return found


def _pairs(
    before: Sequence[Kernel], after: Sequence[Kernel]
) -> Iterator[tuple[Kernel | None, Kernel | None]]:
    """The kernels of one name that differ; a template may be compiled in several modules."""
    left, right = list(before), []
    for kernel in after:
        same = next((each for each in left if _facts(each) == _facts(kernel)), None)
        if same is None:
            right.append(kernel)
        else:
            left.remove(same)
    yield from zip_longest(sorted(left, key=_facts), sorted(right, key=_facts))


def _facts(kernel: Kernel) -> tuple[object, ...]:
    """All of a kernel but its mangled name, in an order that can be sorted."""
    figures = (kernel.registers, kernel.local, kernel.shared, kernel.threads, kernel.cluster)
    return (_spills(kernel), *figures, kernel.size, kernel.digest)


def _order(change: Change) -> tuple[object, ...]:
    return -change.spills, -abs(change.registers), change.state, change.name


def _spills(kernel: Kernel | None) -> int:
    return kernel.spills or 0 if kernel else 0
