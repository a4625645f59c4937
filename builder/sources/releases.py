"""What updates, locks and new recipes ask about inputs; no build needs it.

The releases of PyPI and the best wheel of each; versions that fit together, by uv and by apt; a
wheel read in part; what an sdist says of the source in it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cache
from operator import itemgetter
from pathlib import Path
from tarfile import TarError
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from builder.core import archives
from builder.core.errors import FetchError, GoneError, RecipeError, WorldError
from builder.core.log import Log
from builder.core.remote_file import PartialReadError, RemoteFile
from builder.core.web import TRUST, stored
from builder.plan.inputs import PypiFile, SourceChoice
from builder.recipes.locks import PinnedFile
from builder.sources import git
from builder.sources.apt import AptSource, control
from builder.sources.gather import stored_tree, tree_of, unpacked
from builder.sources.git import NoTreeError
from builder.sources.mirrors import Repositories, submodule_urls
from builder.sources.pypi import Index, digest_of, explained, pip_setting

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


# The releases of the index.


@dataclass(frozen=True, slots=True)
class IndexFile(PinnedFile):
    """A file of the index: its size in bytes, and the day of the upload (YYYY-MM-DD).

    0 and empty where the index does not say.
    """

    size: int = 0
    day: str = ""


def find_wheels(pins: Iterable[tuple[str, str]], python: str) -> list[IndexFile]:
    """For each name and version the best wheel for CPython ``python`` on linux x86_64.

    Raises ``FetchError`` where the index does not answer, or has none.
    """
    index = Index()
    found = []
    for name, version in pins:
        wanted, packages = _version(version), index.page(name, version).packages
        best = _best((each for each in packages if wanted == _version(each.version)), python)
        if best is None:
            raise GoneError(
                f"the package index has no wheel of {name} {version} for CPython {python} on "
                "linux x86_64"
            )
        found.append(IndexFile(name, version, digest_of(best), best.size or 0))
    return found


def find_release(file: PinnedFile, version: str | None, python: str) -> IndexFile:
    """The counterpart of ``file`` in another version, or in the newest.

    For a wheel that is the wheel for CPython ``python`` ("3.12") on linux x86_64, for an sdist the
    sdist.  Raises ``FetchError`` where the index does not answer, or has none.
    """
    kind, offered = _of_kind(Index().page(file.name, file.version), file)
    return _release(file.name, kind, offered, version, python)


def find_sdist(name: str, version: str | None) -> IndexFile:
    """The sdist of a release, or of the newest.  Raises like ``find_release``."""
    packages = Index().page(name, version or "").packages
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
    of_version = [each for each in offered if each.version == wanted and digest_of(each)]
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
    own, offered = _version(file.version), _of_kind(Index().page(file.name, file.version), file)[1]
    finals = _finals(offered).items()
    return [_found(file.name, each[0]) for version, each in finals if own and version > own]


def releases(name: str, python: str) -> list[IndexFile]:
    """The best wheel of each release for CPython ``python`` on linux x86_64, oldest first.

    Pre-releases, yanked releases and releases without such a wheel do not count.  Raises
    ``FetchError`` where the index does not answer, or does not have the project.
    """
    finals = _finals(Index().page(name).packages)
    best = [_best(packages, python) for packages in finals.values()]
    return [_found(name, package) for package in best if package is not None]


def _found(name: str, package: DistributionPackage) -> IndexFile:
    day = package.upload_time.date().isoformat() if package.upload_time else ""
    return IndexFile(name, package.version or "", digest_of(package), package.size or 0, day)


def _best(packages: Iterable[DistributionPackage], python: str) -> DistributionPackage | None:
    ranked = [
        (fit, package)
        for package in packages
        if digest_of(package) and (fit := rank(package.filename, python)) is not None
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
    kinds = [each.package_type for each in page.packages if digest_of(each) == file.sha256]
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


# apt's resolver in a directory of its own: a suite's package lists, for any architecture.
#
# Nothing is installed, and no state of this machine's apt is read or changed, except its settings
# for downloads (proxies, timeouts).  The lists are verified by the keyring of the distribution.

# 'URI' NAME_VERSION_ARCHITECTURE.deb SIZE SHA256:DIGEST, of `apt-get --print-uris`.
LINE = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")


def smallest_root(architecture: str) -> list[str]:
    """The packages of the smallest system with apt: mmdebstrap(1), variant "minbase".

    The patterns are described in apt-patterns(7).
    """
    chosen = ("?essential", "?priority(required)")
    return [*(f"?and({each},?architecture({architecture}))" for each in chosen), "apt"]


class Solver(NamedTuple):
    """The package lists of a suite, in a directory."""

    folder: Path
    sources: tuple[AptSource, ...]

    def as_of(self) -> datetime:
        """The date of the newest of the package lists."""
        dates = [
            parsedate_to_datetime(line.removeprefix("Date:").strip())
            for file in sorted((self.folder / "lists").glob("*Release"))
            for line in file.read_text("utf-8").splitlines()
            if line.startswith("Date:")
        ]
        return max(dates)

    def security(self) -> dict[str, str]:
        """The newest version of each package of the security archive, by name."""
        found: dict[str, str] = {}
        for file in (self.folder / "lists").glob("*-security_*_Packages"):
            name = ""
            for line in file.read_text("utf-8").splitlines():
                if line.startswith("Package: "):
                    name = line.removeprefix("Package: ")
                elif line.startswith("Version: "):
                    version = line.removeprefix("Version: ")
                    if name not in found or is_newer(version, found[name]):
                        found[name] = version
        return found

    def resolve(self, packages: Sequence[str], installed: str) -> list[dict[str, Any]]:
        """The packages that installing ``packages`` brings, without recommended ones, by path.

        Each has a "path", which begins with the archive's name ("debian/pool/..."), a "version", a
        "size" in bytes and a "sha256".
        ``installed`` is a database of dpkg.  Raises ``RecipeError`` where apt cannot install them.
        """
        (self.folder / "status").write_text(installed, "utf-8")
        options = ["-qq", "--yes", "-oAcquire::ForceHash=SHA256", "--print-uris"]
        install = ["--no-install-recommends", "install", "--", *packages]
        done = _apt(["apt-get", *options, *install], self.folder)
        if done.returncode != 0:
            raise RecipeError(
                "apt cannot install the packages",
                _errors(done.stderr),
                "check their names: https://packages.debian.org",
            )
        lines = [LINE.fullmatch(line) for line in done.stdout.splitlines()]
        return sorted((self._found(line) for line in lines if line), key=itemgetter("path"))

    def _found(self, line: re.Match[str]) -> dict[str, Any]:
        uri = line["uri"]
        for source in self.sources:
            for place in source.uris:
                start = place.rstrip("/") + "/"
                if uri.startswith(start):
                    return {
                        "path": f"{source.archive}/{unquote(uri.removeprefix(start))}",
                        "version": unquote(line["file"].split("_")[1]),
                        "size": int(line["size"]),
                        "sha256": line["sha256"],
                    }
        raise FetchError(f"apt names a file of no known source: {uri}")


def is_newer(version: str, than: str) -> bool:
    """Whether a version of a package is newer than another, deb-version(7)."""
    from debian.debian_support import NativeVersion

    return bool(NativeVersion(version) > NativeVersion(than))


def open_solver(
    sources: Sequence[AptSource], text: str, architectures: Sequence[str], folder: Path
) -> Solver:
    """Fetch the package lists of ``sources`` for the architectures, the native one first.

    ``text`` are the sources as sources.list(5) has them.  Raises ``WorldError`` without apt,
    ``FetchError`` where a list cannot be fetched or its signature is bad.
    """
    if shutil.which("apt-get") is None:
        what = "Debian's packages are resolved with apt"
        raise WorldError(what, "apt-get is not installed", "run this on Debian")
    for part in ("lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
        (folder / part).mkdir(parents=True)
    (folder / "etc" / "debian.sources").write_text(text)
    (folder / "status").touch()
    (folder / "apt.conf").write_text("\n".join(_configuration(folder, architectures)))
    done = _apt(["apt-get", "-qq", "update", "--error-on=any"], folder)
    if done.returncode != 0:
        raise FetchError(
            "Debian's package lists cannot be fetched",
            _errors(done.stderr),
            "check that this machine reaches a Debian mirror, and has debian-archive-keyring",
        )
    return Solver(folder, tuple(sources))


def _configuration(folder: Path, architectures: Sequence[str]) -> Iterator[str]:
    """apt.conf(5): nothing of this machine's configuration but its settings for downloads."""
    own = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    yield from (line for line in own.stdout.splitlines() if line.startswith("Acquire::http"))
    yield f'Dir "{folder}";'
    yield f'Dir::Etc "{folder}/etc";'
    yield f'Dir::Etc::SourceList "{folder}/etc/debian.sources";'
    yield f'Dir::State "{folder}";'
    yield f'Dir::State::status "{folder}/status";'
    yield f'Dir::Cache "{folder}/cache";'
    yield f'APT::Architecture "{architectures[0]}";'
    for each in architectures:
        yield f'APT::Architectures:: "{each}";'
    yield 'Acquire::Languages "none";'
    yield 'APT::Sandbox::User "root";\n'  # the directory is this user's alone


def _apt(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"APT_CONFIG": str(folder / "apt.conf"), "LC_ALL": "C.UTF-8"},
    )


def _errors(text: str) -> str:
    # apt takes a name that it does not know for a pattern as well, and says so.
    pattern = re.compile(" by (?:regex|glob) ")
    lines = [line for line in text.splitlines() if line and not pattern.search(line)]
    return "\n".join([line for line in lines if line.startswith("E:")] or lines[-5:])


CVE = re.compile(r"\bCVE-[0-9]{4}-[0-9]{4,}\b")


def mended(deb: Path, since: str) -> list[str]:
    """The CVEs that the changelog of a .deb file names since a version of the package; empty where
    it has none that can be read."""
    from debian.arfile import ArError
    from debian.changelog import ChangelogParseError
    from debian.debfile import DebError, DebFile

    try:
        with DebFile(str(deb)) as opened:
            blocks = opened.changelog() or ()
            entries = [str(each) for each in blocks if is_newer(str(each.version), since)]
    except (ArError, ChangelogParseError, DebError, EOFError, OSError, TarError, ValueError):
        return []
    return list(dict.fromkeys(CVE.findall("".join(entries))))


def installed(debs: Iterable[Path]) -> str:
    """A database of dpkg (/var/lib/dpkg/status) in which these packages are installed."""
    return "".join(f"{control(deb)}\nStatus: install ok installed\n\n" for deb in debs)


# A source to try patches on, and the source in an sdist.

UNRECORDED = ("RECORD", "RECORD.jws", "RECORD.p7s")


def tree_to_try(source: SourceChoice, repositories: Repositories, work: Path) -> tuple[str, str]:
    """The tree of a source to try patches on, never to build from, and a note of its origin.

    Only the text files of a wheel that is not in the cache are fetched; the whole wheel is, if the
    index serves no parts, or other contents than the wheel's RECORD names.  Raises ``FetchError``.
    """
    if not isinstance(source, PypiFile) or repositories.offline:
        return tree_of(source, repositories, work), ""
    file, folder = source.file, work / "files"
    texts = source.texts_only and source.root == "."
    if texts and stored(repositories.cache / "pypi" / file.sha256) is None:
        try:
            fetch_text_files(file, folder, repositories.log)
        except PartialReadError as error:
            repositories.log(f"{file.name} {file.version} is fetched as a whole: {error}")
            shutil.rmtree(folder, ignore_errors=True)
        else:
            note = (
                f"{file.name} {file.version} was read in part: each file has the hash in the "
                "wheel's own RECORD; a build verifies the sha256 of the whole wheel"
            )
            return stored_tree(source, folder, repositories), note
    return tree_of(source, repositories, work), ""


def vendored(source: PypiFile, repositories: Repositories, work: Path) -> tuple[str, str, str]:
    """The source in an sdist, which is fetched whole: its tree in the scratch repository, its URL
    in the sdist's .gitmodules, and the commit whose tree it is, by the commit object that the sdist
    contains (empty: the sdist does not say it); ``work`` is a directory.

    Raises ``FetchError``.
    """
    scratch, log, offline = repositories.scratch, repositories.log, repositories.offline
    folder = work / f"sdist-{source.file.sha256}"
    try:
        top, part = unpacked(source, repositories.cache, folder, log, offline=offline)
        modules = folder / "modules"
        modules.mkdir()
        if (top / ".gitmodules").is_file():
            shutil.copyfile(top / ".gitmodules", modules / ".gitmodules")
        url = submodule_urls(scratch, scratch.tree_from(modules)).get(source.root, "")
        tree = scratch.tree_from(part)
        return tree, url.removesuffix(".git"), _commit_of(part, top, tree, scratch)
    except NoTreeError as error:
        hint = "name the directory of the source in it: root"
        raise FetchError(f"{source.root} of the sdist is no tree", str(error), hint) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _commit_of(part: Path, top: Path, tree: str, scratch: git.Scratch) -> str:
    """The commit of a tree, by the repository of the submodule in an sdist."""
    link = part / ".git"
    text = link.read_text("utf-8", "replace") if link.is_file() else ""
    folder = (part / text.removeprefix("gitdir:").strip()).resolve()
    head = folder / "HEAD"
    if not folder.is_relative_to(top.resolve()) or not head.is_file():
        return ""
    commit = head.read_text("utf-8", "replace").strip()
    if not git.COMMIT.fullmatch(commit):
        return ""
    there = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(folder / "objects")}
    try:
        content, _ = git.run(scratch.folder, "cat-file", "commit", commit, environment=there)
    except git.GitError:
        return ""
    named = hashlib.sha1(b"commit %d\0" % len(content) + content, usedforsecurity=False)
    whole = named.hexdigest() == commit and content.startswith(f"tree {tree}\n".encode())
    return commit if whole else ""


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
    index = Index()
    package = index.find(file)
    log(f"reading the text files of {package.filename}")
    with explained(file.name, file.version):
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
