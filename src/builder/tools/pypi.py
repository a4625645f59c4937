"""Files of PyPI, by name, version and sha256; nothing of them is run.

The index is the one that pip is configured to use, so that mirrors and proxies need nothing of
ours.  A file is named by its digest: which wheel of which platform it is follows from that.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from builder.errors import FetchError

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, PyPISimple

TIMEOUT = 60.0  # seconds without a byte
ATTEMPTS = 4


class File(Protocol):
    """What names a file: ``lock.Locked`` is one."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102
    @property
    def sha256(self) -> str: ...  # noqa: D102


def cached(file: File, cache: Path) -> Path | None:
    """The file in the cache, or None.  What stands there is whole: it was moved there at once."""
    folder = cache / "pypi" / file.sha256
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return found[0] if found else None


def fetch(files: Iterable[File], cache: Path, say: Callable[[str], None]) -> list[Path]:
    """Fetch what is not in the cache; return the paths, in order.

    Raises ``FetchError`` when the index does not answer, does not have the file, or gives other
    bytes than the digest says.
    """
    wanted = list(files)
    missing = [file for file in wanted if cached(file, cache) is None]
    if missing:
        say(f"fetching {len(missing)} of {len(wanted)} files from the package index")
        with _client() as client:
            for file in missing:
                _fetch_one(client, file, cache, say)
    return [path for file in wanted if (path := cached(file, cache))]


def _pip_setting(name: str) -> str | None:
    from_environment = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if from_environment:
        return from_environment
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


@contextmanager
def _client() -> Iterator[PyPISimple]:
    from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple
    from requests import Session

    session = Session()
    certificate = _pip_setting("cert")
    if certificate and "REQUESTS_CA_BUNDLE" not in os.environ:
        session.verify = certificate
    endpoint = _pip_setting("index-url") or PYPI_SIMPLE_ENDPOINT
    with PyPISimple(endpoint, session=session) as client:
        yield client


def _fetch_one(client: PyPISimple, file: File, cache: Path, say: Callable[[str], None]) -> None:
    import requests
    from pypi_simple import NoSuchProjectError
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

    retrying = Retrying(
        retry=retry_if_exception(_worth_retrying),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.5, max=20),
        reraise=True,
    )
    try:
        package = retrying(_find, client, file)
        size = f" ({package.size / 1e6:.1f} MB)" if package.size else ""
        say(f"fetching {package.filename}{size}")
        retrying(_download, client, package, file, cache)
    except NoSuchProjectError as error:
        raise FetchError(
            f"the package index has no project {file.name}",
            hint="check the name, and which index pip is configured to use (pip config list)",
        ) from error
    except (requests.RequestException, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise FetchError(
            f"cannot fetch {file.name} {file.version}",
            f"{type(error).__name__}: {error}",
            "try again; `pip config list` shows which index is used",
        ) from error


def _worth_retrying(error: BaseException) -> bool:
    import requests

    if isinstance(error, requests.HTTPError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    passing = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return isinstance(error, passing)


def _find(client: PyPISimple, file: File) -> DistributionPackage:
    page = client.get_project_page(file.name, timeout=TIMEOUT)
    for package in page.packages:
        if package.digests.get("sha256") == file.sha256:
            return package
    of_version = [package.filename for package in page.packages if package.version == file.version]
    raise FetchError(
        f"the package index has no file of {file.name} {file.version} with sha256 {file.sha256}",
        "it has: " + (", ".join(of_version) or "no file of that version"),
        "the file was withdrawn, or the digest is not that of this version",
    )


def _download(client: PyPISimple, package: DistributionPackage, file: File, cache: Path) -> None:
    name = Path(package.filename).name
    waiting = cache / "pypi" / f".{uuid4().hex}"
    waiting.mkdir(parents=True)
    try:
        digest = hashlib.sha256()
        with client.s.get(package.url, stream=True, timeout=TIMEOUT) as response:
            response.raise_for_status()
            with (waiting / name).open("wb") as sink:
                for block in response.iter_content(1 << 20):
                    digest.update(block)
                    sink.write(block)
        if digest.hexdigest() != file.sha256:
            raise FetchError(
                f"{name} is not what was pinned",
                f"expected sha256 {file.sha256}, got {digest.hexdigest()}",
                "the index, or something between, altered the file",
            )
        try:
            waiting.rename(cache / "pypi" / file.sha256)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise  # not just another run that was quicker
    finally:
        if waiting.exists():
            for part in waiting.iterdir():
                part.unlink()
            waiting.rmdir()
