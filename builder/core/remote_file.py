"""A file on a server, read in parts with range requests (RFC 9110, section 14)."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from builder.core.web import PATIENT, Client, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import WriteableBuffer

BLOCK = 1 << 20  # bytes of one request
KEPT = 4  # blocks in memory
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


class PartialReadError(Exception):
    """The file cannot be read in parts; the text says why."""


class RemoteFile(io.RawIOBase):
    """A seekable file at ``url``; ``size`` in bytes; ``received`` counts the transferred bytes.

    A zip's directory is at its end, so the end is fetched first, unless ``forwards``: a header is
    at the beginning.  ``headers`` go with each request, ``retries`` makes its policy.  Raises
    ``PartialReadError``, and ``WebError`` where the server does not answer.
    """

    def __init__(
        self,
        client: Client,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        forwards: bool = False,
        retries: Callable[[], RetryPolicy] = RetryPolicy,
    ) -> None:
        self._client = client
        self._headers = dict(headers or {})
        self._retries = retries
        self._url = url
        self._at = 0
        self._blocks: list[tuple[int, bytes]] = []
        self.size = 0
        self.received = 0
        self._fetch(f"0-{BLOCK - 1}" if forwards else f"-{BLOCK}")

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
        for start, block in self._blocks:
            if start <= self._at < start + len(block):
                return start, block
        self._fetch(f"{self._at}-{min(self._at + BLOCK, self.size) - 1}")
        return self._blocks[-1]

    def _fetch(self, wanted: str) -> None:
        start, block, size = self._retries().call(lambda: self._request(wanted))
        if self.size not in {0, size} or (self.size and start != self._at):
            raise PartialReadError("the server gives parts of another file")
        self.size = size
        self.received += len(block)
        self._blocks = [*self._blocks[-KEPT + 1 :], (start, block)]

    def _request(self, wanted: str) -> tuple[int, bytes, int]:
        headers = self._headers | {"Range": f"bytes={wanted}"}
        with self._client.open("GET", self._url, headers=headers, **PATIENT) as opened:
            if opened.status == 416:
                raise PartialReadError("the server refuses the range")
            opened.require(200, 206)
            match = CONTENT_RANGE.fullmatch(opened.headers.get("Content-Range", ""))
            if opened.status != 206 or match is None:
                raise PartialReadError(
                    "the server gives only complete files (no HTTP range requests)"
                )
            first, last, size = (int(part) for part in match.groups())
            if not 0 <= last - first < BLOCK:
                raise PartialReadError("the server gives another range than the requested one")
            block = b""
            for part in opened.blocks():
                block += part
                if len(block) > last - first:
                    break
        if len(block) != last - first + 1:
            raise PartialReadError("the server gives another number of bytes than it announced")
        return first, block, size
