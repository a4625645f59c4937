"""Models that llama-gguf-split split: NAME-00001-of-00003.gguf is the first of three files."""

from __future__ import annotations

import re
from collections.abc import Iterable

PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.ASCII)


def parts_of(name: str, names: Iterable[str]) -> list[str]:
    """The ``names`` that are parts of the same model, in order; the name where it has none."""
    split = PART.search(name)
    if split is None:
        return [name]
    found = {each: PART.search(each) for each in names}
    return sorted(
        each
        for each, part in found.items()
        if part and part[2] == split[2] and each[: part.start()] == name[: split.start()]
    )


def renamed(name: str, number: int, count: int) -> str:
    """The name of another part, counted from 1."""
    return PART.sub(f"-{number:05}-of-{count:05}.gguf", name)
