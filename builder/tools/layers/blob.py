"""The blob of a layer, unpacked while it is read and hashed."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import IO, cast

from builder.tools.layers.image import DamagedImageError, require_digest

BLOCK = 1 << 20
PACKED = 1 << 16  # bytes of a blob that are unpacked at once: at most 64 MB of gzip
GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, 2.3.1
GZIP = zlib.MAX_WBITS | 16  # zlib's manual, inflateInit2
LEAST = 256  # bytes of a gzip member, on average; stargz has one for each file, with its header
FREE_MEMBERS = 1000  # whatever their sizes
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1


class StoppedError(Exception):
    """Ends a thread that reads a layer; nobody waits for its result any more."""


class Stream:
    """The unpacked bytes of a layer, read forward once."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.position = 0
        self._blocks = blocks
        self._block = b""
        self._at = 0

    def some(self, most: int) -> bytes:
        """The next bytes, at most so many; none at the end."""
        if self._at == len(self._block):
            self._block, self._at = next(self._blocks, b""), 0
        found = self._block[self._at : self._at + most]
        self._at += len(found)
        self.position += len(found)
        return found

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer at the end."""
        found = self.some(size)
        if len(found) == size:
            return found
        joined = bytearray(found)
        while len(joined) < size and (more := self.some(size - len(joined))):
            joined += more
        return bytes(joined)

    def skip_to(self, position: int) -> None:
        """Read on up to a byte; raises ``DamagedImageError`` where there are not as many."""
        while self.position < position:
            if not self.some(position - self.position):
                raise DamagedImageError(f"the layer ends at byte {self.position:,} of {position:,}")


@contextmanager
def opened(blob: Path, stop: Event | None = None) -> Iterator[Stream]:
    """The unpacked bytes of a layer, which may be packed with gzip or zstd.

    Afterwards the digest of the whole blob is checked.  Raises the exceptions that
    ``damage_reported`` catches, and ``StoppedError`` at the next block after ``stop`` is set.
    """
    with blob.open("rb") as file:
        head = file.read(4)
        file.seek(0)
        packed = _Hashed(file, stop)
        yield Stream(_unpacked(packed, head))
        while packed.read(BLOCK):
            pass  # the end of a tar is not the end of its blob
    require_digest(blob, packed.digest)


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, file: IO[bytes], stop: Event | None) -> None:
        self.digest = hashlib.sha256()
        self._file = file
        self._stop = stop

    def read(self, size: int = -1) -> bytes:
        if self._stop is not None and self._stop.is_set():
            raise StoppedError
        block = self._file.read(size)
        self.digest.update(block)
        return block

    def readable(self) -> bool:
        return True


def _unpacked(packed: _Hashed, head: bytes) -> Iterator[bytes]:
    if head[:2] == GZIP_MAGIC:
        yield from _gunzipped(packed)
    elif head == ZSTD_MAGIC:
        from backports.zstd import ZstdFile

        with ZstdFile(cast("IO[bytes]", packed)) as file:
            while block := file.read1(BLOCK):
                yield block
    else:
        while block := packed.read(BLOCK):
            yield block


def _gunzipped(packed: _Hashed) -> Iterator[bytes]:
    """RFC 1952: a file has members, one after the other; other bytes after them are no layer."""
    data = packed.read(PACKED)
    members = size = 0
    while data.startswith(GZIP_MAGIC):
        members += 1
        if (members - FREE_MEMBERS) * LEAST > size:
            raise DamagedImageError(f"the layer has gzip members of {LEAST} bytes or less")
        member = zlib.decompressobj(GZIP)
        while not member.eof:
            if not data and not (data := packed.read(PACKED)):
                raise DamagedImageError("the gzip file of the layer is cut off")
            if block := member.decompress(data):
                size += len(block)
                yield block
            data = b""
        data = member.unused_data or packed.read(PACKED)
        data += packed.read(1) if len(data) == 1 else b""
