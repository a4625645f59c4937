"""The body of a blob upload, and lines about its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import IO

from builder.tools import sizes
from builder.tools.log import Log

LINE_EVERY = 10.0  # seconds between two lines about an upload


class UploadStream:
    """A file as a request's body; ``on_progress`` gets the number of bytes read so far."""

    def __init__(self, stream: IO[bytes], size: int, on_progress: Callable[[int], None]) -> None:
        self._stream = stream
        self._size = size
        self._on_progress = on_progress
        self._count = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read(1 << 16):
            yield block

    def read(self, size: int = -1) -> bytes:
        """The next bytes, like a file."""
        block = self._stream.read(size)
        self._count += len(block)
        self._on_progress(self._count)
        return block


def progress_lines(log: Log, name: str, size: int) -> Callable[[int], None]:
    """A progress function that logs a line every ``LINE_EVERY`` seconds."""
    last = time.monotonic()

    def progress(count: int) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY and count < size:
            last = time.monotonic()
            log(f"{name}: {sizes.shown(count)} sent")

    return progress
