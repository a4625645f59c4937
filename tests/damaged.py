"""Answers of servers that are damaged: a good one, with another value at some place."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CASES = 10_000
fuzzed = settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
DIGEST = "sha256:" + "0" * 64
ODD: list[Any] = [
    *(None, True, 0, -1, 5, 1.5, 10**30, 1e308, "", "\u00b2", "\ud800", "\n", "\u202e", " x\ny"),
    *([], [None], [5], [[]], {}, {"a": None}, {"digest": 5}, DIGEST, "x" * 5000, "9" * 5000),
]
pieces = st.binary(max_size=3)
values = st.sampled_from(ODD) | pieces.map(lambda piece: piece.decode("latin-1"))
places = st.integers(0, 1000)
cuts = st.none() | st.tuples(st.integers(0, 400), pieces)


def damaged(good: Any, place: int, value: Any, cut: tuple[int, bytes] | None) -> bytes:
    """A document with ``value`` at one of its places, and perhaps other bytes in the middle."""
    paths = list(_paths(good))
    path = paths[place % len(paths)]
    found = copy.deepcopy(good)
    if not path:
        found = value
    else:
        within = found
        for step in path[:-1]:
            within = within[step]
        within[path[-1]] = value
    content = json.dumps(found).encode()
    if cut is None:
        return content
    at, bytes_of = cut
    return content[:at] + bytes_of + content[at + len(bytes_of) + 1 :]


def _paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield here
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(each, (*here, name))
