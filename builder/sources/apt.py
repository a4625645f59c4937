""".deb files by their digest: from the cache, a mirror, or Debian's snapshots.

A mirror drops a version soon after its successor.  snapshot.debian.org keeps every state of the
archives, at ``archive/NAME/YYYYMMDDTHHMMSSZ/``; a request for another time is redirected to the
state before it (https://snapshot.debian.org/, "Usage").
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from operator import itemgetter
from pathlib import Path
from tarfile import TarError
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from builder.core import web
from builder.core.errors import MIRROR_FIRST, FetchError, GoneError, RecipeError, WorldError
from builder.core.settings import SNAPSHOT, Servers
from builder.core.web import Client, WebError, cause
from builder.recipes.locks import DebianFile

# The Debian package sources: of this machine, or at a mirror that the user names.
#
# builder has no mirror of its own: the machine's sources (a mirror, a proxy, a local archive) also
# serve another suite, with the suite's name replaced.

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# Debian's suffixes of a suite's name; other archives' ("bookworm-pgdg") have other signing keys.
DEBIAN_SUFFIXES = ("", "-updates", "-security", "-proposed-updates")
MAIN, SECURITY = "debian", "debian-security"
ONE_LINE = re.compile(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+(\S.*)")


@dataclass(frozen=True, slots=True)
class AptSource:
    """One archive: its addresses, and the suites and components in use."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]

    @property
    def archive(self) -> str:
        """The archive's name, as on snapshot.debian.org: security updates have one of their own."""
        security = any(suite.endswith("-security") for suite in self.suites)
        return SECURITY if security else MAIN


def os_release(etc: Path = Path("/etc")) -> dict[str, str]:
    """The fields of os-release(5); empty where there is none."""
    try:
        text = (etc / "os-release").read_text("utf-8")
    except OSError:
        return {}
    return dict(assignments(text))


def assignments(text: str) -> Iterator[tuple[str, str]]:
    """The fields of a text like os-release(5)."""
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.startswith("#"):
            yield name.strip(), value.strip().strip("\"'")


def machine_sources(etc: Path = Path("/etc")) -> Iterator[AptSource]:
    """The binary package sources of this machine, of both formats of sources.list(5)."""
    folder = etc / "apt"
    lists = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for file in lists:
        if file.is_file():
            for line in file.read_text("utf-8").splitlines():
                if found := ONE_LINE.fullmatch(line.split("#")[0].strip()):
                    yield AptSource((found[1],), (found[2],), tuple(found[3].split()))
    for file in sorted((folder / "sources.list.d").glob("*.sources")):
        yield from _deb822(file)


def _deb822(file: Path) -> Iterator[AptSource]:
    from debian.deb822 import Deb822

    with file.open("rb") as stream:
        for paragraph in Deb822.iter_paragraphs(stream, use_apt_pkg=False):
            if paragraph.get("Enabled", "yes").strip().lower() in {"no", "false", "0"}:
                continue
            if "deb" not in paragraph.get("Types", "").split():
                continue
            yield AptSource(
                tuple(paragraph.get("URIs", "").split()),
                tuple(paragraph.get("Suites", "").split()),
                tuple(paragraph.get("Components", "").split()),
            )


def debian_sources(suite: str, etc: Path = Path("/etc")) -> list[AptSource]:
    """This machine's Debian sources with ``suite`` instead of the machine's own.

    Empty where the machine is not Debian, or no source is for the machine's own suite.
    """
    release = os_release(etc)
    own = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not own:
        return []
    suffixes = DEBIAN_SUFFIXES if suite != "sid" else {""}  # unstable has no updates beside it
    found = []
    for source in machine_sources(etc):
        kept = [name for name in source.suites if name.removeprefix(own) in suffixes]
        if kept and "main" in source.components:
            suites = tuple(suite + name.removeprefix(own) for name in kept)
            found.append(AptSource(source.uris, suites, ("main",)))
    return found


def deb822(sources: Iterable[AptSource]) -> str:
    """Sources in the deb822 format of sources.list(5), signed by Debian."""
    return "\n".join(
        f"Types: deb\nURIs: {' '.join(source.uris)}\nSuites: {' '.join(source.suites)}\n"
        f"Components: {' '.join(source.components)}\nSigned-By: {KEYRING}\n"
        for source in sources
    )


def sources_at(suite: str, mirror: str) -> list[AptSource]:
    """The sources of a suite, its updates and its security updates at a mirror: the server that has
    ``debian`` and ``debian-security``; without one ``debian_sources``."""
    if not mirror:
        return debian_sources(suite)
    server, components = mirror.rstrip("/"), ("main",)
    return [
        AptSource((f"{server}/{MAIN}",), (suite, f"{suite}-updates"), components),
        AptSource((f"{server}/{SECURITY}",), (f"{suite}-security",), components),
    ]


# .deb files, by their digest.

LATER = (timedelta(hours=6), timedelta(days=1))
"""A package list of some time is in the first snapshot after it.  Snapshots are taken four times a
day, and the archive keeps a superseded file for more than a day."""


@dataclass(frozen=True, slots=True)
class PackageArchive:
    """Where files of a suite are: sources for apt, and a server of snapshots."""

    sources: tuple[AptSource, ...]
    snapshot: str = SNAPSHOT

    def urls(self, path: str, as_of: datetime) -> Iterator[str]:
        """The addresses of ``debian/pool/...``, a file of the package lists at ``as_of``."""
        name, _, inside = path.partition("/")
        inside = quote(inside)
        for source in self.sources:
            if source.archive == name:
                for uri in source.uris:
                    if urlsplit(uri).scheme in {"http", "https"}:
                        yield f"{uri.rstrip('/')}/{inside}"
        for later in LATER:
            time = (as_of + later).astimezone(UTC)
            yield f"{self.snapshot.rstrip('/')}/archive/{name}/{time:%Y%m%dT%H%M%SZ}/{inside}"


def archive_of(suite: str, servers: Servers) -> PackageArchive:
    """The archive of a suite of Debian: a mirror or the sources of this machine, and snapshots.

    Without a mirror, on a machine without Debian's sources, the snapshots alone.
    """
    return PackageArchive(tuple(sources_at(suite, servers.mirror)), servers.snapshot)


def newest_snapshots(suite: str, servers: Servers) -> list[AptSource]:
    """The newest snapshots of a suite, its updates and its security updates, as sources."""
    server, now = servers.snapshot.rstrip("/"), f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    parts = {MAIN: (suite, f"{suite}-updates"), SECURITY: (f"{suite}-security",)}
    places = {name: f"{server}/archive/{name}/{now}" for name in parts}
    return [AptSource((places[name],), suites, ("main",)) for name, suites in parts.items()]


def fetch(
    files: Iterable[DebianFile],
    as_of: datetime,
    archive: PackageArchive,
    cache: Path,
    log: Callable[[str], None],
    *,
    offline: bool = False,
) -> list[Path]:
    """Fetch the files that are not in the cache, or damaged there; return all paths, in order.

    Raises ``GoneError`` where neither the mirror nor the snapshots have a file, another
    ``FetchError`` where they do not answer or give bytes with another digest, and where a file is
    not in the cache, or damaged, and ``offline``.
    """
    wanted = list(files)
    missing, damaged = [], []
    for file in dict.fromkeys(wanted):
        path = web.stored(_folder(file, cache))
        if path is None:
            missing.append(file)
        elif _sha256(path) != file.sha256:  # a disk that was full or failed, an edit
            log(f"{_name(file)} in the cache is damaged: its sha256 is not the lock's")
            damaged.append(file)
    missing += damaged
    if missing and offline:
        names = ", ".join(_name(file) for file in missing)
        raise FetchError(f"not in the cache: {names}", "--offline fetches nothing", MIRROR_FIRST)
    if missing:
        log(f"fetching {len(missing)} of {len(wanted)} Debian packages")
        client, silent = Client(), set[str]()
        for file in missing:
            shutil.rmtree(_folder(file, cache), ignore_errors=True)
            _fetch(file, archive.urls(file.path, as_of), client, _folder(file, cache), silent)
    found = [path for file in wanted if (path := web.stored(_folder(file, cache)))]
    if len(found) < len(wanted):
        why = f"they were below {cache / 'debian'} a moment ago"
        hint = "run the same command again"
        raise FetchError("Debian packages were removed from the cache", why, hint)
    return found


def _fetch(
    file: DebianFile, urls: Iterable[str], client: Client, folder: Path, silent: set[str]
) -> None:
    """Store a file from the first address that gives it; servers in ``silent`` are left out."""
    why: dict[str, str] = {}
    gone = True
    for url in urls:
        server = urlsplit(url).netloc.rpartition("@")[2]
        if server in silent:
            gone = False
            why.setdefault(server, f"{server} does not answer")
            continue
        try:
            return web.store(client, url, _name(file), file.sha256, folder)
        except FetchError as error:
            gone = False
            why[server] = f"{url}: {error}"
        except WebError as error:
            gone = gone and error.status in {404, 410}
            if not error.status:
                silent.add(server)
            why[server] = f"{url}: {cause(error)}"
    kind = GoneError if gone else FetchError
    what = "no server has" if gone else "cannot fetch"
    raise kind(f"{what} the Debian package {_name(file)}", "\n".join(why.values()))


def _folder(file: DebianFile, cache: Path) -> Path:
    return cache / "debian" / file.sha256


def _name(file: DebianFile) -> str:
    return file.path.rpartition("/")[2]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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


@dataclass(frozen=True, slots=True)
class Solver:
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
        done = _run(["apt-get", *options, *install], self.folder)
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
    done = _run(["apt-get", "-qq", "update", "--error-on=any"], folder)
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


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
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


# Control data of .deb files, as package indexes and dpkg's database have them.


def control(deb: Path) -> str:
    """The control fields of a .deb file, deb-control(5).  Raises ``FetchError`` if it is none."""
    from debian.arfile import ArError
    from debian.debfile import DebError, DebFile

    try:
        with DebFile(str(deb)) as opened:
            return str(opened.debcontrol().dump()).strip()
    except (ArError, DebError, OSError) as error:
        raise FetchError(f"{deb.name} is not a Debian package", str(error)) from error


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


def repository(folder: Path) -> str:
    """Make a directory of .deb files a repository; the line for sources.list(5).

    https://wiki.debian.org/DebianRepository/Format, "Flat Repository Format".
    """
    stanzas = []
    for deb in sorted(folder.glob("*.deb")):
        place = f"Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {_sha256(deb)}"
        stanzas.append(f"{control(deb)}\n{place}\n")
    (folder / "Packages").write_text("\n".join(stanzas), "utf-8")
    return f"deb [trusted=yes] copy:{folder} ./"
