"""Which path an engine takes for its work on a card, by the kernels that it launches.

An engine chooses between implementations at run time, by card, model and options: a fallback shows
nowhere but in the names of its kernels.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast, get_args

from simulator.cubin import demangled, short

FILE = Path(__file__).with_name("work.toml")
Work = Literal["attention", "products", "KV cache", "other"]
"""What kernels compute; "products" are matrix products."""
PTX = "compute_"  # how the name of code begins that the driver compiles


@dataclass(frozen=True, slots=True)
class WorkPath:
    """A path that an engine took."""

    work: Work
    path: str
    """"FlashAttention 2", "MMQ"."""
    launches: int
    """Launches of its kernels, or calls of cuBLAS."""
    compiled: bool = False
    """Whether the driver compiles some of its kernels at their first launch."""

    @property
    def text(self) -> str:
        """The path in a list: with a note where the driver compiles it."""
        return f"{self.path}, compiled by the driver" if self.compiled else self.path


def paths_taken(
    launches: Iterable[tuple[str, str, int]], calls: Mapping[str, int]
) -> tuple[WorkPath, ...]:
    """The paths of launches, by work and by their number.

    ``launches`` are mangled kernels with the code that the card runs ("sm_120a", "compute_80") and
    a number; ``calls`` are functions of CUDA and how often they were called.
    """
    counts: Counter[tuple[Work, str]] = Counter()
    compiled = set()
    for kernel, code, count in launches:
        found = _of_kernel(kernel)
        if found is not None:
            counts[found] += count
            compiled |= {found} if code.startswith(PTX) else set()
    for function, count in calls.items():
        found = _match("call", function)
        if found is not None:
            counts[found] += count
    order = get_args(Work)
    taken = sorted(counts.items(), key=lambda item: (order.index(item[0][0]), -item[1], item[0]))
    return tuple(WorkPath(*found, count, found in compiled) for found, count in taken)


def by_work(taken: Iterable[WorkPath]) -> dict[Work, list[WorkPath]]:
    """The paths of each kind of work."""
    found: dict[Work, list[WorkPath]] = {}
    for each in taken:
        found.setdefault(each.work, []).append(each)
    return found


def texts_by_work(taken: Iterable[WorkPath]) -> dict[Work, str]:
    """The paths of each kind of work, in one line each."""
    return {
        work: ", ".join(each.text for each in of_work) for work, of_work in by_work(taken).items()
    }


@cache
def _entries() -> list[dict[str, str]]:
    found: list[dict[str, str]] = tomllib.loads(FILE.read_text("utf-8"))["entry"]
    return found


@cache
def _of_kernel(name: str) -> tuple[Work, str] | None:
    return _match("kernel", short(demangled(name)).replace("(anonymous namespace)::", ""))


def _match(field: Literal["kernel", "call"], name: str) -> tuple[Work, str] | None:
    for entry in _entries():
        found = re.match(entry[field], name) if field in entry else None
        if found is not None:
            return cast(Work, entry["work"]), found.expand(entry["path"])
    return None
