"""Files of the Python package index, by name, version and sha256; none of them is executed.

pip's configuration names the index, so mirrors and proxies need no settings here.
A file is identified by its digest, which also determines its kind and platform.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import from_json

from builder.core import archives, sizes
from builder.core.errors import MIRROR_FIRST, FetchError, GoneError, RecipeError
from builder.core.log import Log
from builder.core.remote_file import PartialReadError, RemoteFile
from builder.core.web import (
    TRUST,
    Client,
    Follow,
    Response,
    RetryPolicy,
    WebError,
    cause,
    origin,
    split_url,
    store,
    stored,
)
from builder.recipes.locks import PinnedFile

if TYPE_CHECKING:
    from packaging.tags import Tag
    from packaging.version import Version
    from pypi_simple import DistributionPackage, ProjectPage


# Wheel tags: which wheel of a release is the best for linux x86_64, whatever runs here.
#
# https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/

NEWEST_GLIBC = 41  # 2.41, of Debian 13
OLDEST_GLIBC = 5  # 2.5, of manylinux1
OLDER_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # PEP 600


@cache
def wheel_tags(python: str) -> dict[Tag, int]:
    """The tags that CPython ``python`` ("3.12") supports on linux x86_64, with their ranks."""
    from packaging.tags import compatible_tags, cpython_tags

    platforms = []
    for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1):
        platforms.append(f"manylinux_2_{minor}_x86_64")
        if minor in OLDER_NAMES:
            platforms.append(f"{OLDER_NAMES[minor]}_x86_64")
    platforms.append("linux_x86_64")
    version = tuple(int(part) for part in python.split("."))
    found = [*cpython_tags(version, platforms=platforms)]
    found += compatible_tags(version, f"cp{python.replace('.', '')}", platforms)
    ranks: dict[Tag, int] = {}
    for tag in found:
        ranks.setdefault(tag, len(ranks))
    return ranks


def rank(filename: str, python: str) -> tuple[int, int] | None:
    """The rank of a wheel: smaller is better; None where it does not fit, or is no wheel."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        _, _, build, of_file = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    known = wheel_tags(python)
    ranks = [known[tag] for tag in of_file if tag in known]
    # The later of two builds of one version is better (PEP 427, "build tag").
    return (min(ranks), -(build[0] if build else 0)) if ranks else None


# The index: its pages and its files.

LARGEST_PAGE = 64 << 20  # bytes
UNRECORDED = ("RECORD", "RECORD.jws", "RECORD.p7s")
PAGE_TIMEOUT = 300.0  # seconds


@dataclass(frozen=True, slots=True)
class IndexFile(PinnedFile):
    """A file of the index: its size in bytes, and the day of the upload (YYYY-MM-DD).

    0 and empty where the index does not say.
    """

    size: int = 0
    day: str = ""


def fetch(
    files: Sequence[PinnedFile], cache: Path, log: Log, *, offline: bool = False
) -> list[Path]:
    """Fetch the files that are not in the cache; return all paths, in order.

    Raises ``FetchError`` where the index does not answer, does not have a file, or gives bytes with
    another digest, and where a file is not in the cache and ``offline``.
    """
    places = {file: cache / "pypi" / file.sha256 for file in files}
    missing = [file for file, folder in places.items() if stored(folder) is None]
    if missing and offline:
        names = ", ".join(f"{file.name} {file.version}" for file in missing)
        raise FetchError(f"not in the cache: {names}", "--offline fetches nothing", MIRROR_FIRST)
    if missing:
        log(f"fetching {len(missing)} of {len(places)} files from the package index")
        index = _Index()
        for file in missing:
            package = index.find(file)
            size = f" ({sizes.shown(package.size)})" if package.size else ""
            log(f"fetching {package.filename}{size}")
            name = Path(package.filename).name
            with _explained(file.name, file.version):
                store(index.client, package.url, name, file.sha256, places[file])
    return [path for file in files if (path := stored(places[file]))]


def fetch_text_files(file: PinnedFile, target: Path, log: Log) -> None:
    """Fetch only the text files of a wheel, into the new directory ``target``.

    The sha256 of the index covers the whole file, not a part of it.  So each file is verified by
    the wheel's own RECORD, and its METADATA by the digest that the index may publish.  That detects
    damage on the way; an attacker who can alter the wheel on the server can alter its RECORD, so
    nothing is built from parts.
    https://packaging.python.org/en/latest/specifications/recording-installed-packages/#the-record-file

    Raises ``PartialReadError`` where the wheel cannot be read in parts or does not match its
    RECORD, else like ``fetch``.
    """
    index = _Index()
    package = index.find(file)
    log(f"reading the text files of {package.filename}")
    with _explained(file.name, file.version):
        remote = RemoteFile(index.client, package.url)
        try:
            with zipfile.ZipFile(io.BufferedReader(remote)) as wheel:
                archives.extract_texts(wheel, package.filename, remote.size, target)
            _verify(target, (package.metadata_digests or {}).get("sha256"))
        except (FetchError, csv.Error, *archives.DAMAGED) as error:
            raise PartialReadError(f"it cannot be unpacked in parts: {error}") from error


def _verify(folder: Path, metadata: str | None) -> None:
    records = [*folder.glob("*.dist-info/RECORD")]
    if len(records) != 1:
        raise PartialReadError("it has no RECORD")
    info = records[0].parent
    with records[0].open(encoding="utf-8", newline="") as lines:
        recorded = {row[0]: row[1] for row in csv.reader(lines) if len(row) > 1}
    for file in folder.rglob("*"):
        if file.is_dir() or (file.parent == info and file.name in UNRECORDED):
            continue
        path = file.relative_to(folder).as_posix()
        digest = base64.urlsafe_b64encode(_sha256(file)).decode().rstrip("=")
        if recorded.get(path) != f"sha256={digest}":
            raise PartialReadError(f"{path} does not match its RECORD")
    if metadata is not None and metadata != _sha256(info / "METADATA").hex():
        raise PartialReadError("its METADATA does not match the package index")


def _sha256(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest()


def find_wheels(pins: Iterable[tuple[str, str]], python: str) -> list[IndexFile]:
    """For each name and version the best wheel for CPython ``python`` on linux x86_64.

    Raises ``FetchError`` where the index does not answer, or has none.
    """
    index = _Index()
    found = []
    for name, version in pins:
        wanted, packages = _version(version), index.page(name, version).packages
        best = _best((each for each in packages if wanted == _version(each.version)), python)
        if best is None:
            raise GoneError(
                f"the package index has no wheel of {name} {version} for CPython {python} on "
                "linux x86_64"
            )
        found.append(IndexFile(name, version, _digest_of(best), best.size or 0))
    return found


def find_release(file: PinnedFile, version: str | None, python: str) -> IndexFile:
    """The counterpart of ``file`` in another version, or in the newest.

    For a wheel that is the wheel for CPython ``python`` ("3.12") on linux x86_64, for an sdist the
    sdist.  Raises ``FetchError`` where the index does not answer, or has none.
    """
    kind, offered = _of_kind(_Index().page(file.name, file.version), file)
    return _release(file.name, kind, offered, version, python)


def find_sdist(name: str, version: str | None) -> IndexFile:
    """The sdist of a release, or of the newest.  Raises like ``find_release``."""
    packages = _Index().page(name, version or "").packages
    sdists = [package for package in packages if package.package_type == "sdist"]
    return _release(name, "sdist", sdists, version, "")


def _release(
    name: str,
    kind: str | None,
    offered: Sequence[DistributionPackage],
    version: str | None,
    python: str,
) -> IndexFile:
    finals = _finals(offered)
    wanted = version or (finals[max(finals)][0].version if finals else None)
    of_version = [each for each in offered if each.version == wanted and _digest_of(each)]
    best = _best(of_version, python) if kind == "wheel" else next(iter(of_version), None)
    if best is None or wanted is None:
        where = " for linux x86_64" if kind == "wheel" else ""
        raise GoneError(
            f"the package index has no {kind} of {name} {wanted or ''}".rstrip() + where,
            hint=f"`pip index versions {name}` lists the versions",
        )
    return _found(name, best)


def newer_releases(file: PinnedFile) -> list[IndexFile]:
    """The releases after the release of ``file``, oldest first: one file each, of the same kind.

    Pre-releases and yanked releases do not count.  Raises ``FetchError`` where the index does not
    answer, or does not have the project.
    """
    own, offered = _version(file.version), _of_kind(_Index().page(file.name, file.version), file)[1]
    finals = _finals(offered).items()
    return [_found(file.name, each[0]) for version, each in finals if own and version > own]


def releases(name: str, python: str) -> list[IndexFile]:
    """The best wheel of each release for CPython ``python`` on linux x86_64, oldest first.

    Pre-releases, yanked releases and releases without such a wheel do not count.  Raises
    ``FetchError`` where the index does not answer, or does not have the project.
    """
    finals = _finals(_Index().page(name).packages)
    best = [_best(packages, python) for packages in finals.values()]
    return [_found(name, package) for package in best if package is not None]


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


class _Index:
    """The index that pip is configured to use."""

    def __init__(self) -> None:
        from pypi_simple import PYPI_SIMPLE_ENDPOINT

        certificate = None if "REQUESTS_CA_BUNDLE" in os.environ else pip_setting("cert")
        self.client = Client(Path(certificate) if certificate else None)
        self._endpoint = (pip_setting("index-url") or PYPI_SIMPLE_ENDPOINT).rstrip("/")

    def page(self, project: str, version: str = "") -> ProjectPage:
        """The page of a project; ``version`` is for the error."""
        with _explained(project, version):
            return RetryPolicy().call(lambda: self._page(project))

    def _page(self, project: str) -> ProjectPage:
        from packaging.utils import canonicalize_name
        from pypi_simple import ACCEPT_ANY

        response = self.client.request(
            "GET",
            f"{self._endpoint}/{canonicalize_name(project)}/",
            headers={"Accept": ACCEPT_ANY},
            limit=LARGEST_PAGE,
            total_timeout=PAGE_TIMEOUT,
            follow=Follow.ANYWHERE,
        )
        if response.status == 404:
            raise GoneError(
                f"the package index has no project {project}",
                hint="check the name, and which index pip is configured to use (pip config list)",
            )
        response.require(200)
        return _parsed(project, response)

    def find(self, file: PinnedFile) -> DistributionPackage:
        page = self.page(file.name, file.version)
        for package in page.packages:
            if _digest_of(package) == file.sha256:
                with _explained(file.name, file.version):
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
        own, file = split_url(self._endpoint), split_url(package.url)
        if own.username is None or origin(package.url) != origin(self._endpoint):
            return package
        login, address = own.netloc.rpartition("@")[0], file.netloc.rpartition("@")[2]
        return replace(package, url=file._replace(netloc=f"{login}@{address}").geturl())


@contextmanager
def _explained(name: str, version: str) -> Iterator[None]:
    try:
        yield
    except WebError as error:
        hint = "try again; `pip config list` shows which index is used"
        what = f"cannot fetch {name} {version}".rstrip()
        raise FetchError(what, cause(error), hint) from error


def _parsed(project: str, response: Response) -> ProjectPage:
    """A page of the Simple repository API, in any of its formats."""
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
        raise WebError("its page is damaged, or of another format", temporary=False) from error
    raise WebError("its page is not a page of a package index", temporary=False)


def _digest_of(package: DistributionPackage) -> str:
    return package.digests.get("sha256", "")


def _found(name: str, package: DistributionPackage) -> IndexFile:
    day = package.upload_time.date().isoformat() if package.upload_time else ""
    return IndexFile(name, package.version or "", _digest_of(package), package.size or 0, day)


def _best(packages: Iterable[DistributionPackage], python: str) -> DistributionPackage | None:
    ranked = [
        (fit, package)
        for package in packages
        if _digest_of(package) and (fit := rank(package.filename, python)) is not None
    ]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _version(text: str | None) -> Version | None:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text or "")
    except InvalidVersion:
        return None


def _of_kind(page: ProjectPage, file: PinnedFile) -> tuple[str | None, list[DistributionPackage]]:
    """The kind of a file ("wheel", "sdist"), and the packages of that kind."""
    kinds = [each.package_type for each in page.packages if _digest_of(each) == file.sha256]
    kind = kinds[0] if kinds else "wheel"
    return kind, [package for package in page.packages if package.package_type == kind]


def _finals(packages: Iterable[DistributionPackage]) -> dict[Version, list[DistributionPackage]]:
    """The files of each version, oldest first, that are neither yanked nor of a pre-release."""
    found: dict[Version, list[DistributionPackage]] = defaultdict(list)
    for package in packages:
        version = _version(package.version)
        if version is not None and not package.is_yanked and not version.is_prerelease:
            found[version].append(package)
    return dict(sorted(found.items()))


# uv's resolver: compatible versions for another Python and platform than this machine's.
#
# pip evaluates environment markers for the interpreter that it runs on, whatever its options
# (pypa/pip#11664); uv does not (https://docs.astral.sh/uv/pip/compile/).

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$")
KNOWN_GLIBC = 40  # the newest in uv's list of platforms
UNSATISFIABLE = re.compile(r"No solution found|requirements are unsatisfiable", re.IGNORECASE)
TIMEOUT = 1200.0  # seconds


def resolve(requirements: Sequence[str], python: str, cache: Path) -> list[tuple[str, str]]:
    """Names and versions of ``requirements`` and all their dependencies, as linux x86_64 wheels.

    Their metadata stays in ``cache``.  Raises ``RecipeError`` where no versions are compatible,
    ``FetchError`` where the index does not answer.
    """
    from uv import find_uv_bin  # of the extra `build`

    platform = f"x86_64-manylinux_2_{min(NEWEST_GLIBC, KNOWN_GLIBC)}"
    command = [find_uv_bin(), "pip", "compile", "-"]
    command += [f"--python-version={python}", f"--python-platform={platform}"]
    command += ["--only-binary=:all:", "--no-header", "--no-annotate", "--no-config", "--quiet"]
    command += ["--no-python-downloads", f"--cache-dir={cache / 'uv'}"]
    index = pip_setting("index-url")
    certificate = os.environ.get("REQUESTS_CA_BUNDLE") or pip_setting("cert")
    command += [f"--default-index={index}"] if index else []
    environment = dict(os.environ)
    if certificate:
        environment.setdefault("SSL_CERT_FILE", certificate)
    done = subprocess.run(
        command,
        input="".join(f"{line}\n" for line in requirements),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
        env=environment,
    )
    if done.returncode != 0:
        why = done.stderr.strip()
        if UNSATISFIABLE.search(why):
            raise RecipeError(
                f"no compatible versions for CPython {python} on linux x86_64",
                why,
                "change the requirements",
            )
        hint = TRUST if "certificate" in why else "try again"
        raise FetchError("cannot resolve the versions: the package index fails", why, hint)
    pins = (PIN.match(line.strip()) for line in done.stdout.splitlines())
    return [(pin[1], pin[2]) for pin in pins if pin]
