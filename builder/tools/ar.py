"""The members of an ar archive, such as a static library.

ar(5) of FreeBSD: 8 bytes of magic, then for each member a header of 60 bytes (its name in the
first 16, its size in decimal digits at byte 48, two bytes of magic at 58) and the content, padded
to an even offset.  In the BSD variant a name ``#1/N`` says that the content begins with a name of N
bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import IO

MAGIC = b"!<arch>\n"
_HEADER = struct.Struct("16s32x10s2s")
_END = b"`\n"
_BSD = b"#1/"


class MalformedArchiveError(ValueError):
    """An archive is truncated or damaged; the text says where (byte offset) and how."""


def members(stream: IO[bytes]) -> Iterator[tuple[int, int]]:
    """Offset and size of the content of each member, also of the archive's own tables.

    Raises ``MalformedArchiveError``.
    """
    end = stream.seek(0, os.SEEK_END)
    at = len(MAGIC)
    while at < end:
        where = f"archive member at byte {at:#x}"
        stream.seek(at)
        data = stream.read(_HEADER.size)
        if len(data) < _HEADER.size:
            raise MalformedArchiveError(f"{where}: its header is cut off")
        name, digits, magic = _HEADER.unpack(data)
        if magic != _END or not digits.strip().isdigit():
            raise MalformedArchiveError(f"{where}: damaged header")
        start, size = at + _HEADER.size, int(digits)
        if start + size > end:
            raise MalformedArchiveError(f"{where}: {size} bytes run past the end of the file")
        skipped = _name_size(name)
        yield start + min(skipped, size), size - min(skipped, size)
        at = start + size + size % 2


def _name_size(name: bytes) -> int:
    digits = name.removeprefix(_BSD).strip()
    return int(digits) if name.startswith(_BSD) and digits.isdigit() else 0
