"""The line of each key of a TOML document: tomllib keeps no positions.

A TOML document is a row of statements (a table header or ``key = value``, which may run over
several lines).  Each is grown line by line until tomllib accepts it; its paths begin on its first
line.
"""

from __future__ import annotations

import tomllib
from typing import Any

Path = tuple[str | int, ...]


def _leaves(value: Any, at: Path) -> list[Path]:
    found = [at]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _leaves(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _leaves(inner, (*at, index))
    return found


def _statement(lines: list[str], start: int) -> tuple[dict[str, Any] | None, int]:
    for end in range(start + 1, len(lines) + 1):
        try:
            return tomllib.loads("\n".join(lines[start:end])), end
        except tomllib.TOMLDecodeError:
            continue
    return None, start + 1


def _innermost(value: dict[str, Any]) -> list[str]:
    """The dotted name of a table header, as keys: ``[a.b]`` parses to ``{a: {b: {}}}``."""
    keys: list[str] = []
    inner: Any = value
    while inner:
        if isinstance(inner, list):
            inner = inner[0]
            continue
        key, inner = next(iter(inner.items()))
        keys.append(key)
    return keys


def line_numbers(text: str) -> dict[Path, int]:
    """Map every path of a valid TOML document to the line, from 1, on which it begins.

    Array items of ``[[table]]`` are counted from 0.  A value inside a statement of several lines
    has the line of the statement.
    """
    lines = text.split("\n")
    places: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    prefix: Path = ()
    at = 0
    while at < len(lines):
        start = at
        value, at = _statement(lines, at)
        head = lines[start].lstrip()
        if not value:
            continue
        if head.startswith("["):
            keys = _innermost(value)
            prefix = ()
            for depth, key in enumerate(keys):
                prefix = (*prefix, key)
                places.setdefault(prefix, start + 1)
                if depth == len(keys) - 1 and head.startswith("[["):
                    counts[prefix] = counts.get(prefix, -1) + 1
                if prefix in counts:
                    prefix = (*prefix, counts[prefix])
            places[prefix] = start + 1
        else:
            for path in _leaves(value, ()):
                if path:
                    places.setdefault((*prefix, *path), start + 1)
    return places


def line_of(path: Path, places: dict[Path, int]) -> int:
    """The line of ``path``, or of the nearest part of the document that contains it."""
    while path:
        if path in places:
            return places[path]
        path = path[:-1]
    return 1
