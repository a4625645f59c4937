"""Answers of servers that are damaged: a good one, with another value at some place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

CASES = 10_000
"""For each kind of answer."""
DIGEST = "sha256:" + "0" * 64
ODD: list[Any] = [
    *(None, True, 0, -1, 5, 1.5, 10**30, 1e308, "", "\u00b2", "\ud800", "\n", "\u202e", " x\ny"),
    *([], [None], [5], [[]], {}, {"a": None}, {"digest": 5}, DIGEST, "x" * 5000, "9" * 5000),
]


def fuzzed(check: Callable[[bytes], None]) -> Callable[[], None]:
    """Run a check with many seeds for ``damaged``, others in each run; an error names its seed."""

    def run() -> None:
        for _ in range(CASES):
            seed = random.randbytes(7)
            try:
                check(seed)
            except BaseException as error:
                error.add_note(f"with the seed {seed!r}")
                raise

    run.__name__, run.__doc__ = check.__name__, check.__doc__
    return run


def damaged(good: Any, seed: bytes) -> bytes:
    """A document with an odd value at one of its places, or with other bytes in the middle."""
    place, odd, at, length = seed[0], seed[1], 2 * seed[2], seed[3] % 4
    text = json.dumps(good)
    if length:
        content = text.encode()
        return content[:at] + seed[4 : 4 + length] + content[at + length :]
    paths = _paths_of(text)
    *path, last = paths[place % len(paths)] or (None,)
    if last is None:
        return json.dumps(ODD[odd % len(ODD)]).encode()
    found = json.loads(text)
    within = found
    for step in path:
        within = within[step]
    within[last] = ODD[odd % len(ODD)]
    return json.dumps(found).encode()


@cache
def _paths_of(text: str) -> list[tuple[Any, ...]]:
    return list(_paths(json.loads(text)))


def _paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(each, (*here, name))
