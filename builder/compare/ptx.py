"""PTX text split into its functions.

PTX ISA, "Kernel and Function Directives".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOP = re.compile(rb'//[^\n]*|/\*.*?\*/|"[^"]*"|[{};]', re.DOTALL)
_FUNCTION = re.compile(
    rb"(?:\.(?:visible|weak|extern)\s+)*"
    rb"\.(?:entry|func\b\s*(?:\.noreturn\b\s*)?(?:\([^)]*\))?)\s*([\w$.]+)"
)


def split(text: bytes) -> tuple[list[tuple[str, bytes]], bytes]:
    """The functions with a body, in order, and all of the text that is outside of them.

    Of a function the mangled name, and its text, which begins with its linkage.
    """
    functions: list[tuple[str, bytes]] = []
    others: list[bytes] = []
    done = 0
    for start, brace, end in _blocks(text):
        found = _FUNCTION.search(text, start, brace)
        if found is not None:
            others.append(text[done : found.start()])
            name = found[1].decode(errors="replace")
            functions.append((name, text[found.start() : end]))
            done = end
    others.append(text[done:])
    return functions, b"".join(others)


def _blocks(text: bytes) -> Iterator[tuple[int, int, int]]:
    start = at = 0
    while (token := _TOP.search(text, at)) is not None:
        at = token.end()
        if token[0] == b"{":
            at = _closing(text, at)
            yield start, token.start(), at
        if token[0] in (b"{", b";"):
            start = at


def _closing(text: bytes, at: int) -> int:
    """The byte after the brace that closes one before ``at``; comments have no braces."""
    depth = 1
    while depth:
        end = text.find(b"}", at)
        if end < 0:
            return len(text)
        depth += text.count(b"{", at, end) - 1
        at = end + 1
    return at
