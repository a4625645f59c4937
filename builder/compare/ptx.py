"""PTX text split into its functions, and what makes two of them differ.

PTX ISA, "Kernel and Function Directives".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOP = re.compile(rb'//[^\n]*|/\*.*?\*/|"[^"]*"|[{};]', re.DOTALL)
_FUNCTION = re.compile(
    rb"(?:\.(?:visible|weak|extern)\s+)*"
    rb"\.(?:entry|func\b\s*(?:\.noreturn\b\s*)?(?:\([^)]*\))?)\s*([\w$.]+)"
)
_SIZES = (b"8", b"16", b"32", b"64")
_LOAD = re.compile(rb"ld\.[\w.:]*\.([su])8\b")
_ID = rb"[0-9a-f]{8}_\d+_\w*?_[0-9a-f]{8}(?:_\d+)?"
"""nvcc's name of a source: hashes, the name of the file, and for a file that defines no function or
variable for others, such as one of templates only, a process id (seen with CUDA 12.8 to 13.1)."""
_STATIC = re.compile(rb"__nv_static_\d+__" + _ID + rb"(?=_)")
_SIZED = re.compile(rb"(\d+)(?=_INTERNAL_|_GLOBAL__N__)")
"""Before such a part of a mangled name stands its length (Itanium C++ ABI, 5.1.3, source-name)."""
_PART = re.compile(rb"_(?:INTERNAL_|GLOBAL__N__)" + _ID)
_LINKAGE = (b"_INTERNAL_", b"_GLOBAL__N__", b"__nv_static_")


@dataclass(frozen=True, slots=True)
class PtxFunction:
    """A kernel or device function; ``name`` is mangled, ``text`` begins with its linkage."""

    name: str
    text: bytes


def split(text: bytes) -> tuple[list[PtxFunction], bytes]:
    """The functions with a body, in order, and all of the text that is outside of them."""
    functions: list[PtxFunction] = []
    others: list[bytes] = []
    done = 0
    for start, brace, end in _blocks(text):
        found = _FUNCTION.search(text, start, brace)
        if found is not None:
            others.append(text[done : found.start()])
            name = found[1].decode(errors="replace")
            functions.append(PtxFunction(name, text[found.start() : end]))
            done = end
    others.append(text[done:])
    return functions, b"".join(others)


def without_signs(text: bytes) -> bytes:
    """The text with the same type in the place of signed and unsigned ones of a size."""
    for size in _SIZES:
        text = text.replace(b".s" + size, b".u" + size)
    return text


def without_made_up_names(text: bytes) -> bytes:
    """The text without the names that nvcc gives to what has internal linkage."""
    if not any(part in text for part in _LINKAGE):
        return text
    text = _STATIC.sub(b"", text)
    kept, done = [], 0
    while (found := _SIZED.search(text, done)) is not None:
        start, end = _made_up(text, found)
        kept.append(text[done:start])
        done = end
    return b"".join((*kept, text[done:]))


def _made_up(text: bytes, size: re.Match[bytes]) -> tuple[int, int]:
    """The bounds of a part of a mangled name that nvcc made up; digits before it may not belong to
    its length.  Nothing where there is none."""
    for start in range(*size.span()):
        end = size.end() + int(text[start : size.end()])
        if _PART.fullmatch(text, size.end(), end):
            return start, end
    return size.end(), size.end()


def byte_loads(text: bytes) -> tuple[int, int]:
    """The number of signed and of unsigned 8-bit loads."""
    found = [load[1] for load in _LOAD.finditer(text)]
    return found.count(b"s"), found.count(b"u")


def _blocks(text: bytes) -> Iterator[tuple[int, int, int]]:
    """The statements with braces outside of all others: start, opening brace, end."""
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
