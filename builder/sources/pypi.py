"""Files of the Python package index, by name, version and sha256; none of them is executed.

pip's configuration names the index, so mirrors and proxies need no settings here.
A file is identified by its digest, which also determines its kind and platform.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import from_json

from builder.core import sizes, web
from builder.core.errors import MIRROR_FIRST, FetchError, GoneError
from builder.core.log import Log
from builder.recipes.locks import PinnedFile

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, ProjectPage


# The index: its pages and its files.

LARGEST_PAGE = 64 << 20  # bytes
PAGE_TIMEOUT = 300.0  # seconds


def fetch(
    files: Sequence[PinnedFile], cache: Path, log: Log, *, offline: bool = False
) -> list[Path]:
    """Fetch the files that are not in the cache; return all paths, in order.

    Raises ``FetchError`` where the index does not answer, does not have a file, or gives bytes with
    another digest, and where a file is not in the cache and ``offline``.
    """
    places = {file: cache / "pypi" / file.sha256 for file in files}
    missing = [file for file, folder in places.items() if web.stored(folder) is None]
    if missing and offline:
        names = ", ".join(f"{file.name} {file.version}" for file in missing)
        raise FetchError(f"not in the cache: {names}", "--offline fetches nothing", MIRROR_FIRST)
    if missing:
        log(f"fetching {len(missing)} of {len(places)} files from the package index")
        index = Index()
        for file in missing:
            package = index.find(file)
            size = f" ({sizes.shown(package.size)})" if package.size else ""
            log(f"fetching {package.filename}{size}")
            name = Path(package.filename).name
            with explained(file.name, file.version):
                web.store(index.client, package.url, name, file.sha256, places[file])
    return [path for file in files if (path := web.stored(places[file]))]


def pip_setting(name: str) -> str | None:
    """A setting of pip: "index-url", "cert"."""
    from_environment = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    return from_environment or _configured(name)


@cache
def _configured(name: str) -> str | None:
    """A setting in pip's configuration files; pip takes half a second to read them."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


class Index:
    """The index that pip is configured to use."""

    def __init__(self) -> None:
        from pypi_simple import PYPI_SIMPLE_ENDPOINT

        certificate = None if "REQUESTS_CA_BUNDLE" in os.environ else pip_setting("cert")
        self.client = web.Client(Path(certificate) if certificate else None)
        self._endpoint = (pip_setting("index-url") or PYPI_SIMPLE_ENDPOINT).rstrip("/")

    def page(self, project: str, version: str = "") -> ProjectPage:
        """The page of a project; ``version`` is for the error."""
        with explained(project, version):
            return web.RetryPolicy().call(lambda: self._page(project))

    def _page(self, project: str) -> ProjectPage:
        from packaging.utils import canonicalize_name
        from pypi_simple import ACCEPT_ANY

        response = self.client.request(
            "GET",
            f"{self._endpoint}/{canonicalize_name(project)}/",
            headers={"Accept": ACCEPT_ANY},
            limit=LARGEST_PAGE,
            total_timeout=PAGE_TIMEOUT,
            follow=web.Follow.ANYWHERE,
        )
        if response.status == 404:
            raise GoneError(
                f"the package index has no project {project}",
                hint="check the name, and which index pip is configured to use (pip config list)",
            )
        response.require(200)
        return _parsed(project, response)

    def find(self, file: PinnedFile) -> DistributionPackage:
        """The file with this digest.  Raises ``GoneError``."""
        page = self.page(file.name, file.version)
        for package in page.packages:
            if digest_of(package) == file.sha256:
                with explained(file.name, file.version):
                    return self._with_login(package)
        there = [package.filename for package in page.packages if package.version == file.version]
        raise GoneError(
            f"the package index has no file of {file.name} {file.version} with sha256 "
            f"{file.sha256}",
            "it has: " + (", ".join(there) or "no file of that version"),
            "the file was removed from the index, or the digest belongs to another version",
        )

    def _with_login(self, package: DistributionPackage) -> DistributionPackage:
        """A file with the user and the password of the index, where it is on the same host.

        So pip does; nothing else has the login of a private index.
        """
        own, file = web.split_url(self._endpoint), web.split_url(package.url)
        if own.username is None or web.origin(package.url) != web.origin(self._endpoint):
            return package
        login, address = own.netloc.rpartition("@")[0], file.netloc.rpartition("@")[2]
        return replace(package, url=file._replace(netloc=f"{login}@{address}").geturl())


@contextmanager
def explained(name: str, version: str) -> Iterator[None]:
    """Raise ``FetchError`` where the index does not give a file or a page."""
    try:
        yield
    except web.WebError as error:
        hint = "try again; `pip config list` shows which index is used"
        what = f"cannot fetch {name} {version}".rstrip()
        raise FetchError(what, web.cause(error), hint) from error


def _parsed(project: str, response: web.Response) -> ProjectPage:
    from email.message import Message

    from pypi_simple import ProjectPage, UnsupportedRepoVersionError

    named = Message()
    named["Content-Type"] = response.headers.get("Content-Type", "text/html")
    try:
        if named.get_content_type() == "application/vnd.pypi.simple.v1+json":
            return ProjectPage.from_json_data(from_json(response.content), response.url)
        if named.get_content_type() in {"application/vnd.pypi.simple.v1+html", "text/html"}:
            charset = named.get_content_charset()
            return ProjectPage.from_html(project, response.content, response.url, charset)
    except (ValueError, LookupError, RecursionError, UnsupportedRepoVersionError) as error:
        raise web.WebError("its page is damaged, or of another format", temporary=False) from error
    raise web.WebError("its page is not a page of a package index", temporary=False)


def digest_of(package: DistributionPackage) -> str:
    """Its sha256; empty: the index does not say it."""
    return package.digests.get("sha256", "")
