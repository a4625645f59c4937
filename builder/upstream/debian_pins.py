"""The locked Debian packages of recipes and bases: mirrored, and still available or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from threading import Lock

from builder.families import bases_of
from builder.plan.debian import lock_file
from builder.platforms import Architecture, Platforms, architecture
from builder.recipes import debian_lock
from builder.recipes.catalog import Catalog
from builder.recipes.debian_lock import DebianFile, DebianLock
from builder.settings import Settings
from builder.tools.apt import archive
from builder.tools.apt.archive import Servers
from builder.tools.log import Log
from builder.upstream.lock_debian import AnyEntry, wanted_on


def lock_of(entry: AnyEntry) -> DebianLock | None:
    """The Debian lock of an entry, or None.  Raises ``RecipeError`` where it is invalid."""
    file = lock_file(entry)
    return debian_lock.read(file, entry.name) if file is not None else None


def locked(catalog: Catalog, entries: Sequence[AnyEntry]) -> Iterator[tuple[AnyEntry, datetime]]:
    """The bases of ``entries`` and the entries themselves that have a lock, with its date."""
    names = dict.fromkeys(base for entry in entries for base in bases_of(catalog, entry.recipe))
    bases = sorted(names, key=lambda name: len(catalog.chain(name)))
    for entry in [*(catalog.base(name) for name in bases), *entries]:
        lock = lock_of(entry)
        if lock is not None:
            yield entry, lock.as_of


def files_of(lock: DebianLock) -> list[DebianFile]:
    """All files of a lock, each once."""
    return list(dict.fromkeys(file for install in lock.install for file in install.files))


class Verifier:
    """Checks locked packages, each once; a server that does not answer is asked once."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._silent: set[str] = set()
        self._known: set[str] = set()
        self._turn = Lock()

    def check(self, lock: DebianLock) -> None:
        """Raise ``GoneError`` where no server has a file, ``FetchError`` where none answers."""
        import requests

        place = archive.archive_of(lock.suite, self._servers)
        with self._turn, requests.Session() as session:
            for file in files_of(lock):
                if file.sha256 not in self._known:
                    archive.check(file, lock.as_of, place, self._silent, session)
                    self._known.add(file.sha256)


def mirror(
    entry: AnyEntry, targets: Iterable[Architecture], settings: Settings, log: Log
) -> Iterator[str]:
    """Fetch the locked packages that builds for these targets need here; a line for each.

    Raises ``FetchError``.
    """
    lock = lock_of(entry)
    if lock is None:
        return
    machine = architecture() or "amd64"
    wanted = (wanted_on(entry.recipe, Platforms(machine, target)) for target in targets)
    keys = {each.key for several in wanted for each in several}
    needed = [file for each in lock.install if each.key in keys for file in each.files]
    place = archive.archive_of(lock.suite, settings.debian_servers)
    archive.fetch(needed, lock.as_of, place, settings.cache_dir, log)
    yield from (f"{file.name} {file.version} {file.architecture}" for file in needed)
