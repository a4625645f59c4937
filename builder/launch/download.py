"""Downloads of models: resumed where they were cut, and checked.

The bytes go to ``FILE.part`` beside the target, which appears when its size and its sha256 are
right.  A run that is stopped leaves the part for the next one (RFC 9110, section 14: ranges).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from builder.errors import BusyError, FetchError
from builder.models.location import Location, bearer, refused, token_for
from builder.tools.files import full_disk, is_disk_full, require_space, require_writable
from builder.tools.web.downloads import TIMEOUT
from builder.tools.web.retry import RetryPolicy

if TYPE_CHECKING:
    from requests import Response, Session

BLOCK = 1 << 20
RESERVE = 1.0  # GiB that stay free on the disk
CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/\d{1,18}")
Progress = Callable[[str, int, int], None]
"""Gets the name of a file, the bytes that are there, and its size."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A file to download."""

    location: Location
    name: str
    """Its path in the repository."""
    target: Path
    size: int
    """Bytes."""
    sha256: str | None = None
    """None: only the size is checked."""

    @property
    def part(self) -> Path:
        """The file of an unfinished download."""
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def left(self) -> int:
        """Bytes that are still to come."""
        if self.target.is_file():
            return 0
        return max(self.size - (self.part.stat().st_size if self.part.exists() else 0), 0)


def download(fetches: Sequence[Fetch], directory: Path, progress: Progress) -> None:
    """Download the files that are not there; each appears when it is complete.

    Raises ``SpaceError`` before the first byte where the disk has no room for all of them,
    ``WorldError`` where the directory cannot be written, ``FetchError`` where the server fails to
    the end or gives other bytes, ``BusyError`` where another run downloads the same file.
    """
    require_writable(directory, "set BUILDER_MODELS_DIR to a directory that you can write to")
    left = sum(each.left for each in fetches)
    require_space(directory, left / 2**30 + (RESERVE if left else 0), "the download of the model")
    for fetch in fetches:
        if not fetch.target.is_file():
            _download(fetch, progress)


def _download(fetch: Fetch, progress: Progress) -> None:
    import requests

    fetch.target.parent.mkdir(parents=True, exist_ok=True)
    with fetch.part.open("a+b") as part:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                f"another run downloads {fetch.location.shown}", hint="wait until it has ended"
            ) from error
        try:
            if fetch.target.is_file():  # of another run, which had the lock until now
                fetch.part.unlink(missing_ok=True)
                return
            with requests.Session() as session:
                if token := token_for(fetch.location.place):
                    session.auth = bearer(token)
                _Transfer(session, fetch, part, progress).run()
        except requests.RequestException as error:
            raise refused(fetch.location, error) from error
        except OSError as error:
            if is_disk_full(error):
                raise full_disk(f"writing {fetch.part}", fetch.part.parent) from error
            raise
        finally:
            if fetch.size and os.fstat(part.fileno()).st_size == 0:
                fetch.part.unlink(missing_ok=True)
        os.fsync(part.fileno())
        fetch.part.replace(fetch.target)


class _Transfer:
    """One file on its way: the bytes so far, and their digest."""

    def __init__(self, session: Session, fetch: Fetch, part: BinaryIO, progress: Progress) -> None:
        self._session = session
        self._fetch = fetch
        self._part = part
        self._progress = progress
        self._digest = hashlib.sha256()
        self._there = 0

    def run(self) -> None:
        """Take what an earlier run left, get the rest, and check all of it."""
        self._part.seek(0)
        while block := self._part.read(BLOCK):
            self._count(block)
        if self._there > self._fetch.size:
            self._restart()
        policy = RetryPolicy()
        policy.call(lambda: self._receive(policy))
        self._require_right()

    def _receive(self, policy: RetryPolicy) -> None:
        """One request for all that is left; the next one continues where it is cut."""
        if self._there == self._fetch.size:
            return
        # "identity": ranges and sizes are those of the file
        headers = {"Range": f"bytes={self._there}-", "Accept-Encoding": "identity"}
        url = self._fetch.location.place
        with self._session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            response.raise_for_status()
            if not self._continues(response):
                self._restart()
            for block in response.iter_content(BLOCK):
                if self._there + len(block) > self._fetch.size:
                    raise self._wrong(f"it is larger than {self._fetch.size} bytes")
                self._part.write(block)
                self._count(block)
                policy.server_responded()
        self._part.flush()

    def _continues(self, response: Response) -> bool:
        """Whether a response begins where the part ends; a server may ignore ranges."""
        match = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        return response.status_code == 206 and match is not None and int(match[1]) == self._there

    def _count(self, block: bytes) -> None:
        self._digest.update(block)
        self._there += len(block)
        self._progress(self._fetch.name, self._there, self._fetch.size)

    def _restart(self) -> None:
        self._part.truncate(0)
        self._digest, self._there = hashlib.sha256(), 0

    def _require_right(self) -> None:
        if self._there != self._fetch.size:
            raise FetchError(
                f"{self._fetch.location.shown} is incomplete",
                f"{self._there} of {self._fetch.size} bytes came",
                "run the same command again: it continues there",
            )
        found = self._digest.hexdigest()
        if self._fetch.sha256 not in {None, found}:
            raise self._wrong(f"expected sha256 {self._fetch.sha256}, got {found}")

    def _wrong(self, why: str) -> FetchError:
        self._fetch.part.unlink(missing_ok=True)
        return FetchError(
            f"{self._fetch.location.shown} is not the file that the Hub lists",
            why,
            "what was downloaded is removed: try again; if it happens again, the server, or "
            "something between, alters the file",
        )
