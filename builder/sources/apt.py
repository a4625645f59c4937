""".deb files by their digest: from the cache, a mirror, or Debian's snapshots.

A mirror drops a version soon after its successor.  snapshot.debian.org keeps every state of the
archives, at ``archive/NAME/YYYYMMDDTHHMMSSZ/``; a request for another time is redirected to the
state before it (https://snapshot.debian.org/, "Usage").
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit

from builder.core import downloads
from builder.core.errors import MIRROR_FIRST, FetchError, GoneError
from builder.core.settings import SNAPSHOT, Servers
from builder.core.web import Client
from builder.core.web_errors import WebError, cause
from builder.sources.sources import AptSource, sources_at

LATER = (timedelta(hours=6), timedelta(days=1))
"""A package list of some time is in the first snapshot after it.  Snapshots are taken four times a
day, and the archive keeps a superseded file for more than a day."""


class DebFile(Protocol):
    """The identity of a .deb file; ``recipes.debian_lock.DebianFile`` has it."""

    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def sha256(self) -> str: ...  # noqa: D102


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


def cached(file: DebFile, cache: Path) -> Path | None:
    """The file in the cache, or None; not verified."""
    return downloads.stored(_folder(file, cache))


def fetch(
    files: Iterable[DebFile],
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
        path = cached(file, cache)
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
    found = [path for file in wanted if (path := cached(file, cache))]
    if len(found) < len(wanted):
        why = f"they were below {cache / 'debian'} a moment ago"
        hint = "run the same command again"
        raise FetchError("Debian packages were removed from the cache", why, hint)
    return found


def _fetch(
    file: DebFile, urls: Iterable[str], client: Client, folder: Path, silent: set[str]
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
            return downloads.store(client, url, _name(file), file.sha256, folder)
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


def _folder(file: DebFile, cache: Path) -> Path:
    return cache / "debian" / file.sha256


def _name(file: DebFile) -> str:
    return file.path.rpartition("/")[2]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
