""".deb files by their digest: from the cache, a mirror, or Debian's snapshots.

A mirror drops a version soon after its successor.  snapshot.debian.org keeps every state of the
archives, at ``archive/NAME/YYYYMMDDTHHMMSSZ/``; a request for another time is redirected to the
state before it (https://snapshot.debian.org/, "Usage").
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

from builder.core import web
from builder.core.errors import MIRROR_FIRST, FetchError, GoneError
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
