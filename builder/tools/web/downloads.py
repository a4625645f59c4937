"""Downloads: files streamed into a directory and verified by their sha256."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from builder.errors import MIRROR_FIRST, FetchError, GoneError
from builder.tools.web.errors import cause, web_error
from builder.tools.web.retry import RetryPolicy, with_retries

if TYPE_CHECKING:
    from requests import Response, Session

TIMEOUT = 60.0  # seconds without a byte


def fetch(url: str, sha256: str, cache: Path, log: Callable[[str], None], *, offline: bool) -> Path:
    """The file with that digest, from the cache or from ``url``.

    Raises ``FetchError`` where the server does not have it or gives other bytes, and where it is
    not in the cache and ``offline``.
    """
    folder = cache / "archives" / sha256
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if found:
        return found[0]
    if offline:
        raise FetchError(f"{url} is not in the cache", "--offline fetches nothing", MIRROR_FIRST)
    import requests

    log(f"fetching {url}")
    name = Path(unquote(urlsplit(url).path)).name or "archive"
    with requests.Session() as session:
        try:
            store(session, url, name, sha256, folder)
        except requests.RequestException as error:
            raise FetchError(
                f"cannot fetch {url}",
                cause(error),
                "check the URL; where it is right, try again",
            ) from error
    return folder / name


def check(url: str, session: Session | None = None) -> None:
    """Raise ``GoneError`` where the server no longer has the file; only its first byte is fetched.

    ``session`` keeps connections for other files.  Raises another ``FetchError`` where the server
    does not answer.
    """
    import requests

    get = session.get if session is not None else requests.get

    def request() -> None:
        first = {"Range": "bytes=0-0"}  # some servers that give a file refuse HEAD
        with get(url, headers=first, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == 206:
                response.content  # noqa: B018  (a connection is kept when all is read)
            if response.status_code != 416:  # an empty file has no first byte
                response.raise_for_status()

    try:
        with_retries(request)
    except requests.RequestException as error:
        failure = web_error(error)
        gone = failure is not None and failure.status and not failure.temporary
        raise (GoneError if gone else FetchError)(f"cannot fetch {url}", cause(error)) from error


def store(session: Session, url: str, name: str, sha256: str, folder: Path) -> None:
    """Stream ``url`` into ``folder/name``; the folder appears when the file is complete.

    Failures are retried under one policy; a server that sends bytes responds.  Raises
    ``FetchError`` where the bytes do not have the digest, errors of ``requests`` where the server
    does not give them.
    """
    policy = RetryPolicy()
    policy.call(lambda: _store(session, url, name, sha256, folder, policy))


def _store(
    session: Session, url: str, name: str, sha256: str, folder: Path, policy: RetryPolicy
) -> None:
    waiting = folder.parent / f".{uuid4().hex}"
    waiting.mkdir(parents=True)
    try:
        digest = hashlib.sha256()
        with session.get(url, stream=True, timeout=TIMEOUT) as response:
            response.raise_for_status()
            with (waiting / name).open("wb") as sink:
                for block in _blocks(response, policy):
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


def _blocks(response: Response, policy: RetryPolicy) -> Iterator[bytes]:
    """A file's bytes.  A server that sent some has responded, also where they stop."""
    received = False
    try:
        for block in response.iter_content(1 << 20):
            received = True
            yield block
    finally:
        if received:
            policy.server_responded()
