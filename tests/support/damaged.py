"""Answers of servers that are damaged: a good one, with another value at some place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CASES = 10_000
"""For each kind of answer."""
DIGEST = "sha256:" + "0" * 64
ODD: list[Any] = [
    *(None, True, 0, -1, 5, 1.5, 10**30, 1e308, "", "\u00b2", "\ud800", "\n", "\u202e", " x\ny"),
    *([], [None], [5], [[]], {}, {"a": None}, {"digest": 5}, DIGEST, "x" * 5000, "9" * 5000),
]

fuzzed = settings(
    max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
seeds = st.binary(min_size=7, max_size=7)
"""What ``damaged`` decides by; one draw, for ten thousand of them are made."""


def damaged(good: Any, seed: bytes) -> bytes:
    """A document with an odd value at one of its places, or with other bytes in the middle."""
    place, odd, at, length = seed[0], seed[1], 2 * seed[2], seed[3] % 4
    content = json.dumps(good).encode()
    if length:
        return content[:at] + seed[4 : 4 + length] + content[at + length :]
    found = json.loads(content)
    *path, last = list(_paths(good))[place % len(list(_paths(good)))] or (None,)
    if last is None:
        return json.dumps(ODD[odd % len(ODD)]).encode()
    within = found
    for step in path:
        within = within[step]
    within[last] = ODD[odd % len(ODD)]
    return json.dumps(found).encode()


def _paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(each, (*here, name))
