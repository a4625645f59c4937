"""Files of the web, streamed into a directory and held to their sha256."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from builder.errors import MIRROR_FIRST, FetchError, GoneError

if TYPE_CHECKING:
    from requests import Session

T = TypeVar("T")
TIMEOUT = 60.0  # seconds without a byte
ATTEMPTS = 4
LONGEST_WAIT = 60.0  # seconds: a server that asks for more is not waited for


def fetch(url: str, sha256: str, cache: Path, say: Callable[[str], None], *, offline: bool) -> Path:
    """The file of that digest, out of the cache or from ``url``.

    Raises ``FetchError`` when the server does not have it or gives other bytes, and where it is
    not in the cache and ``offline``.
    """
    folder = cache / "archives" / sha256
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if found:
        return found[0]
    if offline:
        raise FetchError(f"{url} is not in the cache", "--offline fetches nothing", MIRROR_FIRST)
    import requests

    say(f"fetching {url}")
    name = Path(unquote(urlsplit(url).path)).name or "archive"
    with requests.Session() as session:
        try:
            retrying(lambda: store(session, url, name, sha256, folder))
        except requests.RequestException as error:
            raise FetchError(
                f"cannot fetch {url}",
                f"{type(error).__name__}: {error}",
                "check the URL; where it is right, try again",
            ) from error
    return folder / name


def check(url: str) -> None:
    """Raise ``GoneError`` unless the server still gives the file; its contents are not read.

    Raises another ``FetchError`` when it does not answer.
    """
    import requests

    def ask() -> None:
        with requests.get(url, stream=True, timeout=TIMEOUT) as answer:
            answer.raise_for_status()

    try:
        retrying(ask)
    except requests.RequestException as error:
        answered = isinstance(error, requests.HTTPError) and not _worth_retrying(error)
        kind = GoneError if answered else FetchError
        raise kind(f"cannot fetch {url}", f"{type(error).__name__}: {error}") from error


def retrying(work: Callable[[], T]) -> T:
    """Do it, and again where a network or a server may be better the next time.

    429 and 503 name a time to wait in Retry-After (RFC 9110, 10.2.3): it is waited for.
    """
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential
    from tenacity.wait import wait_base

    class AsAsked(wait_base):
        def __call__(self, retry_state: object) -> float:
            outcome = getattr(retry_state, "outcome", None)
            asked = _retry_after(outcome.exception() if outcome else None)
            backoff = wait_random_exponential(multiplier=0.5, max=20)
            return asked if asked is not None else float(backoff(retry_state))  # type: ignore[arg-type]

    return Retrying(
        retry=retry_if_exception(_worth_retrying),
        stop=stop_after_attempt(ATTEMPTS),
        wait=AsAsked(),
        reraise=True,
    )(work)


def _retry_after(error: BaseException | None) -> float | None:
    import requests

    if isinstance(error, requests.HTTPError):
        value = error.response.headers.get("Retry-After", "")
        return float(value) if value.isdigit() else None
    return None


def _worth_retrying(error: BaseException) -> bool:
    import requests

    if isinstance(error, requests.HTTPError):
        asked = _retry_after(error)
        if asked is not None and asked > LONGEST_WAIT:
            return False
        return error.response.status_code == 429 or error.response.status_code >= 500
    passing = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return isinstance(error, passing)


def store(session: Session, url: str, name: str, sha256: str, folder: Path) -> None:
    """Stream ``url`` into ``folder/name``; the folder is there only when the file is whole.

    Raises ``FetchError`` when the bytes are not those of the digest, ``requests``' errors when
    the server does not give them.
    """
    waiting = folder.parent / f".{uuid4().hex}"
    waiting.mkdir(parents=True)
    try:
        digest = hashlib.sha256()
        with session.get(url, stream=True, timeout=TIMEOUT) as response:
            response.raise_for_status()
            with (waiting / name).open("wb") as sink:
                for block in response.iter_content(1 << 20):
                    digest.update(block)
                    sink.write(block)
        if digest.hexdigest() != sha256:
            raise FetchError(
                f"{name} is not what was pinned",
                f"expected sha256 {sha256}, got {digest.hexdigest()}",
                "the server, or something between, altered the file",
            )
        try:
            waiting.rename(folder)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise  # not just another run that was quicker
    finally:
        if waiting.exists():
            for part in waiting.iterdir():
                part.unlink()
            waiting.rmdir()
