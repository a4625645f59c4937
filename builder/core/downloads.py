"""Downloads: files streamed into a directory of their own and verified by their sha256."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

from builder.core import sizes
from builder.core.errors import FetchError
from builder.core.names import require_writable_names
from builder.core.parallel import require_wanted
from builder.core.retry import RetryPolicy
from builder.core.web import Client, Follow
from builder.core.web_errors import WebError

LARGEST = 16 << 30  # bytes of a file whose size nobody pinned
PATIENT: dict[str, Any] = {"read_timeout": 60.0, "least": 1 << 20, "follow": Follow.ANYWHERE}
"""How files are requested: from wherever they are, and a MiB has to come in ``TOTAL_TIMEOUT``."""


def stored(folder: Path) -> Path | None:
    """The complete file that ``store`` wrote into ``folder``; None where there is none."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return found[0] if found else None


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
    digest, received = hashlib.sha256(), 0
    try:
        with client.open("GET", url, **PATIENT) as opened, (waiting / name).open("wb") as sink:
            opened.require(200)
            for block in opened.blocks():
                require_wanted()
                received += len(block)
                if received > LARGEST:
                    why = f"its response is larger than {sizes.shown(LARGEST)}"
                    raise WebError(why, temporary=False)
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
        except OSError:
            if stored(folder) is None:  # else another run was faster
                raise
    finally:
        if received:  # a server that sent some has responded, also where they stop
            policy.server_responded()
        shutil.rmtree(waiting, ignore_errors=True)
