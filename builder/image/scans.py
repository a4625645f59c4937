"""Scans of layers, kept in the cache: a layer is unpacked and taken apart once.

A scan counts for the layer with the same digest, which fixes all its bytes, and only for the code
that made the scan.  Texts and symbols that one recipe wants are left out, device code is not.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from builder.core.errors import SpaceError
from builder.core.files import atomic_write, keep_newest
from builder.image.contents import File
from builder.image.entries import LayerEntry
from builder.image.options import ReadOptions

SMALLEST = 1 << 20  # bytes of a layer whose scan is kept: others are read as fast
MOST = 200  # scans that are kept: 1 MB is much for one
READERS = ("contents", "kernels", "tools", "tools/layers")
"""The packages whose code takes layers apart."""
PLAIN = ReadOptions()
DIGEST = 64  # hex digits of the sha256 that a file begins with


def find(folder: Path, digest: str, options: ReadOptions) -> list[LayerEntry[File]] | None:
    """The scan of a layer, or None; ``digest`` is its sha256 in hex."""
    file = _file(folder, digest, options)
    try:
        content = file.read_bytes()
        file.touch()  # the oldest are removed first
    except OSError:
        return None
    head, body = content[:DIGEST], content[DIGEST:]
    if hashlib.sha256(body).hexdigest().encode() != head:
        return None
    return adapter().validate_json(body)


def keep(
    folder: Path, digest: str, options: ReadOptions, entries: Sequence[LayerEntry[File]]
) -> None:
    """Keep the scan of a layer, also where others are removed for it.

    A disk that does not take it is no error, nor are names that are no UTF-8.
    """
    plain = [_plain(entry) for entry in entries]
    with suppress(OSError, SpaceError, PydanticSerializationError):
        body = adapter().dump_json(plain, exclude_defaults=True)
        with atomic_write(_file(folder, digest, options)) as temporary:
            temporary.write_bytes(hashlib.sha256(body).hexdigest().encode() + body)
        keep_newest(folder, MOST)


@cache
def adapter() -> TypeAdapter[list[LayerEntry[File]]]:
    """Reads and writes scans as JSON."""
    return TypeAdapter(list[LayerEntry[File]])


def _file(folder: Path, digest: str, options: ReadOptions) -> Path:
    code = f"{options.card}{options.code_outside}" if options.card else ""
    made = hashlib.sha256(f"{_reader()} {code}".encode()).hexdigest()
    return folder / f"{digest}-{made[:16]}.json"


@cache
def _reader() -> str:
    """Identifies the code that takes layers apart: its own, and Python's."""
    root = Path(__file__).parents[1]
    own = hashlib.sha256()
    for package in READERS:
        for file in sorted((root / package).glob("*.py")):
            own.update(file.read_bytes())
    return f"{own.hexdigest()} {sys.version}"


def _plain(entry: LayerEntry[File]) -> LayerEntry[File]:
    """An entry without the text and the symbols that only some recipes want."""
    file = entry.node
    if file.symbols is None and (file.text is None or PLAIN.text(file.path)):
        return entry
    return replace(entry, node=replace(file, text=None, symbols=None))
