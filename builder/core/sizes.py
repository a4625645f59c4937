"""Sizes as people write them: bytes to show, memory and contexts to read."""

from __future__ import annotations

import re

MEMORY = re.compile(r"\s*([1-9]\d{0,5})\s*([gGmM])(?:i?[bB])?\s*")
CONTEXT = re.compile(r"\s*([1-9]\d{0,7})([kKmM]?)\s*")


def shown(count: int) -> str:
    """``21.90 GB`` or ``325.0 MB``: decimal units, as registries and the Hub show them."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def gib(count: int) -> str:
    """``23.4 GiB``: binary units, as memory of cards is counted."""
    return f"{count / (1 << 30):.1f} GiB"


def card(usable: int) -> str:
    """``24 GB (23.4 GiB usable)``: a card's memory as people name it, and the memory for CUDA.

    The name is the next size that cards are sold with: an even number of GB, above 32 one of 8.
    """
    step = 2 if usable <= 32 << 30 else 8
    return f"{-(-usable // (step << 30)) * step} GB ({gib(usable)} usable)"


def memory_of(text: str) -> int:
    """``12G``, ``12GB`` and ``12288M`` in bytes; GB and MB of memory are GiB and MiB.

    Raises ``ValueError``.
    """
    match = MEMORY.fullmatch(text)
    if match is None:
        unit = f"; give a unit: {text.strip()}G" if text.strip().isdigit() else ""
        raise ValueError(f"{text.strip()!r} is no size of memory such as 12G or 12288M{unit}")
    return int(match[1]) << (30 if match[2] in "gG" else 20)


def contexts_of(text: str) -> tuple[int, ...]:
    """``32K,64K`` in tokens, each size once, in the order of the text; raises ``ValueError``.

    K is 1024, M 1024 K.  65K, 131K and 262K are 65536, 131072 and 262144: a number of K that is a
    power of two in whole thousands means that power, as models' maxima are written.
    """
    return tuple(dict.fromkeys(context_of(part) for part in text.split(",")))


def context_of(text: str) -> int:
    """One size of ``contexts_of``."""
    match = CONTEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text.strip()!r} is not a number of tokens such as 8192 or 32K")
    count = int(match[1])
    if not match[2]:
        return count
    if match[2] in "mM":
        return count << 20
    power = 1 << (count * 1000).bit_length()
    return power if power // 1000 == count else count * 1024


# The order of tags and versions, whatever scheme a project uses.

PRE_RELEASE = re.compile(
    r"(?:^|[._-]|\d)(?:a|alpha|b|beta|dev|pre|preview|rc)[._-]?\d*$", re.IGNORECASE
)

RELEASE = re.compile(r"v?[0-9]+(?:\.[0-9]+)+")
"""A tag or a version of a release: "v0.5.0"; of no pre-release."""

Counted = tuple[tuple[int, str], ...]


def version_order(tag: str) -> tuple[Counted, bool, Counted]:
    """A sort key for tags and versions: numbers by value, a pre-release before its release.

    A number is its length and its digits: Python does not parse one with thousands of digits.
    """
    number = re.match(r"[^0-9]*([0-9]+(?:[._][0-9]+)*)", tag)
    numbers = _counted(number[1].replace("_", ".")) if number else ()
    rest = tag[number.end() :] if number else tag
    return numbers, not (rest and PRE_RELEASE.search(rest)), _counted(rest)


def _counted(text: str) -> Counted:
    """A text split at its numbers: the length and the digits of each; other text has length 0."""
    parts = [
        (number.lstrip("0"), other) for number, other in re.findall("([0-9]+)|([^0-9]+)", text)
    ]
    return tuple((len(number), number or other) for number, other in parts)
