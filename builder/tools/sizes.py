"""Sizes as people write them: bytes to show, contexts to read."""

from __future__ import annotations

import re

CONTEXT = re.compile(r"\s*([1-9]\d{0,7})([kK]?)\s*")


def shown(count: int) -> str:
    """``21.90 GB`` or ``325.0 MB``: decimal units, as registries and the Hub show them."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def contexts_of(text: str) -> tuple[int, ...]:
    """``32K,64K`` in tokens, each size once, in the order of the text; raises ``ValueError``.

    K is 1024.  65K, 131K and 262K are 65536, 131072 and 262144: a number of K that is a power of
    two in whole thousands means that power, as models' maxima are written.
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
    power = 1 << (count * 1000).bit_length()
    return power if power // 1000 == count else count * 1024
