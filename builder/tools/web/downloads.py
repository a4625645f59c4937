"""Downloads: files streamed into a directory and verified by their sha256."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from builder.errors import FetchError
from builder.tools import sizes
from builder.tools.beside import require_wanted
from builder.tools.file_names import require_writable_names
from builder.tools.web.client import Client, Follow, Opened
from builder.tools.web.errors import WebError
from builder.tools.web.retry import RetryPolicy

LARGEST = 16 << 30  # bytes of a file whose size nobody pinned
PATIENT: dict[str, Any] = {"read_timeout": 60.0, "least": 1 << 20, "follow": Follow.ANYWHERE}
"""How files are requested: from wherever they are, and a MiB has to come in ``TOTAL_TIMEOUT``."""


def store(client: Client, url: str, name: str, sha256: str, folder: Path) -> None:
    """Stream ``url`` into ``folder/name``; the folder appears when the file is complete.

    Failures are retried under one policy; a server that sends bytes responds.  Raises
    ``FetchError`` where the bytes do not have the digest or the name cannot be written,
    ``WebError`` where the server does not give them.
    """
    require_writable_names([name], url)
    policy = RetryPolicy()
    policy.call(lambda: _store(client, url, name, sha256, folder, policy))


def _store(
    client: Client, url: str, name: str, sha256: str, folder: Path, policy: RetryPolicy
) -> None:
    waiting = folder.parent / f".{uuid4().hex}"
    waiting.mkdir(parents=True)
    try:
        digest = hashlib.sha256()
        with client.open("GET", url, **PATIENT) as opened:
            opened.require(200)
            with (waiting / name).open("wb") as sink:
                for block in _blocks(opened, policy):
                    digest.update(block)
                    sink.write(block)
        if digest.hexdigest() != sha256:
            raise FetchError(
                f"{name} does not have the pinned digest",
                f"expected sha256 {sha256}, got {digest.hexdigest()}",
                "the pin is wrong, or the server or something between altered the file",
            )
        try:
            waiting.rename(folder)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise  # not only another run that was faster
    finally:
        if waiting.exists():
            for part in waiting.iterdir():
                part.unlink()
            waiting.rmdir()


def _blocks(opened: Opened, policy: RetryPolicy) -> Iterator[bytes]:
    """A file's bytes.  A server that sent some has responded, also where they stop."""
    received = 0
    try:
        for block in opened.blocks():
            require_wanted()
            received += len(block)
            if received > LARGEST:
                why = f"its response is larger than {sizes.shown(LARGEST)}"
                raise WebError(why, temporary=False)
            yield block
    finally:
        if received:
            policy.server_responded()
