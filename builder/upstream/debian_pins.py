"""The locked Debian packages of recipes and bases: mirrored, and still available or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Lock

from builder.plan.debian import lock_file
from builder.platforms import Architecture, Platforms, architecture
from builder.recipes import debian_lock
from builder.recipes.debian_lock import DebianFile, DebianLock
from builder.settings import Settings
from builder.tools.apt import archive
from builder.tools.apt.servers import Servers
from builder.tools.log import Log
from builder.tools.web.client import Client
from builder.upstream.lock_debian import AnyEntry, wanted_on


def lock_of(entry: AnyEntry) -> DebianLock | None:
    """The Debian lock of an entry, or None.  Raises ``RecipeError`` where it is invalid."""
    file = lock_file(entry)
    return debian_lock.read(file, entry.name) if file is not None else None


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
        place = archive.archive_of(lock.suite, self._servers)
        with self._turn:
            client = Client()
            for file in files_of(lock):
                if file.sha256 not in self._known:
                    archive.require_offered(file, lock.as_of, place, self._silent, client)
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
