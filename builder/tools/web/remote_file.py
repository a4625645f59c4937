"""A file of the web, read in parts, with range requests (RFC 9110, 14)."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from builder.tools.web.downloads import TIMEOUT
from builder.tools.web.retry import with_retries

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from requests import Session

BLOCK = 1 << 20  # bytes of one request: what lies together is read together
KEPT = 4  # blocks
ANSWERED = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


class PartialReadError(Exception):
    """The server does not give parts of the file, or not of the same file; says why."""


class RemoteFile(io.RawIOBase):
    """A seekable file at ``url``; ``size`` in bytes.

    Raises ``PartialReadError``, and ``requests``' errors where the server does not answer.
    """

    def __init__(self, session: Session, url: str) -> None:
        self._session = session
        self._url = url
        self._at = 0
        self._blocks: list[tuple[int, bytes]] = []
        self.size = 0
        # A zip's directory is at its end, and only the answer tells where that is.
        self._ask(f"-{BLOCK}")

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """The new position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read some bytes; none at the end."""
        view = memoryview(buffer)
        if self._at >= self.size or not len(view):
            return 0
        start, block = self._block()
        part = block[self._at - start : self._at - start + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _block(self) -> tuple[int, bytes]:
        """What is here of the file around the position."""
        for start, block in self._blocks:
            if start <= self._at < start + len(block):
                return start, block
        self._ask(f"{self._at}-{min(self._at + BLOCK, self.size) - 1}")
        return self._blocks[-1]

    def _ask(self, wanted: str) -> None:
        start, block, size = with_retries(lambda: self._answer(wanted))
        if self.size not in {0, size} or (self.size and start != self._at):
            raise PartialReadError("the server gave parts of another file")
        self.size = size
        self._blocks = [*self._blocks[-KEPT + 1 :], (start, block)]

    def _answer(self, wanted: str) -> tuple[int, bytes, int]:
        headers = {"Range": f"bytes={wanted}", "Accept-Encoding": "identity"}
        with self._session.get(self._url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            if answer.status_code == 416:
                raise PartialReadError("the server refuses the range")
            answer.raise_for_status()
            told = ANSWERED.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status_code != 206 or told is None:
                raise PartialReadError("the server gives whole files only")
            first, last, size = (int(part) for part in told.groups())
            if not 0 <= last - first < BLOCK:
                raise PartialReadError("the server gave another range than was asked for")
            block = b""
            for part in answer.iter_content(1 << 16):
                block += part
                if len(block) > last - first:
                    break
        if len(block) != last - first + 1:
            raise PartialReadError("the server gave another number of bytes than it said")
        return first, block, size
