"""The models of a run on this machine, and the missing ones."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from builder.core import sizes
from builder.core.errors import BusyError, FetchError, WorldError
from builder.core.files import full_disk, is_disk_full, own_file, require_space, require_writable
from builder.core.names import PART
from builder.core.web import RetryPolicy, WebError
from builder.presets import model_files, models
from builder.presets.described import given_files, joined
from builder.presets.model_files import DIRECTORY
from builder.presets.models import Location, on_the_hub, refused
from builder.presets.schema import ModelFile
from builder.presets.service import OPTIONS_OF_PLACES, Files, Mount, Run

# Downloads of models: resumed where they were cut, and checked.
#
# The bytes go to ``FILE.part`` beside the target, which appears when its size and its sha256 are
# right.  A run that is stopped leaves the part for the next one.
#
# ``hf_hub_download`` is not used: since version 1.18 of huggingface_hub it gives each run a file
# of its own and removes it on failure, so that a model of 17 GB begins anew after Ctrl-C (issue
# 4196 of its repository); it compares no sha256, and only warns where the disk has no room.

RESERVE = 1.0  # GiB that stay free on the disk
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
    sha256: str | None = None
    """None: only the size is checked."""

    @property
    def part(self) -> Path:
        """The file of an unfinished download."""
        return self.target.with_name(f"{self.target.name}{PART}")

    @property
    def left(self) -> int:
        """Bytes that are still to come."""
        if self.target.is_file():
            return 0
        try:
            return max(self.size - self.part.lstat().st_size, 0)
        except FileNotFoundError:
            return self.size


def download(fetches: Sequence[Fetch], directory: Path, progress: Progress) -> None:
    """Download the files that are not there; each appears when it is complete.

    Raises ``SpaceError`` before the first byte where the disk has no room for all of them,
    ``WorldError`` where the directory cannot be written or something else has the name of a file,
    ``FetchError`` where the server fails
    or gives other bytes, ``BusyError`` where another run downloads the same file.
    """
    require_writable(directory, "set BUILDER_MODELS_DIR to a directory that you can write to")
    left = sum(each.left for each in fetches)
    require_space(directory, left / 2**30 + (RESERVE if left else 0), "the download of the model")
    for fetch in fetches:
        if not fetch.target.is_file():
            _download(fetch, progress)


def _download(fetch: Fetch, progress: Progress) -> None:
    if fetch.target.is_dir():
        raise WorldError(
            f"cannot write to {fetch.target}",
            "it is a directory",
            "move it away, then run the same command again",
        )
    with own_file(fetch.part) as part:
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
            _Transfer(fetch, part, progress).run()
        except WebError as error:
            raise refused(fetch.location, error) from error
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise full_disk(f"writing {fetch.part}", fetch.part.parent) from error
        finally:
            if fetch.size and os.fstat(part.fileno()).st_size == 0:
                fetch.part.unlink(missing_ok=True)
        os.fsync(part.fileno())
        fetch.part.replace(fetch.target)


class _Transfer:
    """One file on its way: the bytes so far, and their digest."""

    def __init__(self, fetch: Fetch, part: BinaryIO, progress: Progress) -> None:
        self._fetch = fetch
        self._part = part
        self._progress = progress
        self._policy = RetryPolicy()
        self._digest = hashlib.sha256()
        self._there = 0

    def run(self) -> None:
        self._part.seek(0)
        while block := self._part.read(models.BLOCK):
            self._count(block)
        if self._there > self._fetch.size:
            self._begin_anew()
        self._policy.call(self._receive)
        found = self._digest.hexdigest()
        if self._fetch.sha256 not in {None, found}:
            raise self._wrong(f"expected sha256 {self._fetch.sha256}, got {found}")

    def _write(self, block: bytes) -> None:
        if self._there + len(block) > self._fetch.size:
            raise self._wrong(f"it is larger than {self._fetch.size} bytes")
        self._part.write(block)
        self._count(block)
        self._policy.server_responded()

    def _begin_anew(self) -> None:
        self._part.truncate(0)
        self._digest, self._there = hashlib.sha256(), 0

    def _receive(self) -> None:
        url, size = self._fetch.location.place, self._fetch.size
        models.receive(url, self._there, size, self._write, self._begin_anew)
        self._part.flush()

    def _count(self, block: bytes) -> None:
        self._digest.update(block)
        self._there += len(block)
        self._progress(self._fetch.name, self._there, self._fetch.size)

    def _wrong(self, why: str) -> FetchError:
        self._fetch.part.unlink(missing_ok=True)
        return FetchError(
            f"{self._fetch.location.shown} is not the file that the Hub lists",
            why,
            "the download was removed: try again; if it fails again, the server, or a proxy, "
            "alters the file",
        )


# The models of a run, and the missing ones.

CACHE = "/hub"
"""The cache of the Hub's own client in a container."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A model that is not on this machine."""

    place: str
    file: ModelFile
    directory: Path
    fetches: tuple[Fetch, ...] = ()
    """Its files on the Hub; empty where they are not known."""
    why: str = ""

    @property
    def size(self) -> int:
        """Bytes to download; 0 where they are not known."""
        return sum(each.size for each in self.fetches)

    @property
    def task(self) -> str:
        """What has to be done for it, in a line."""
        return f"download {self.file.shown}: {sizes.shown(self.size)} to {self.directory}"

    def commands(self, target: str) -> str:
        """How to get it: the commands of builder and of the Hub's own client."""
        option = OPTIONS_OF_PLACES[self.place]
        if self.file.repository is None:
            return f"the preset names no repository: give the file with {option} FILE"
        known = [each.name for each in self.fetches] or [self.file.file or ""]
        command = model_files.download(self.file, str(self.directory), [*filter(None, known)])
        return f"`builder run {target} --yes`, or {command}, or {option} FILE"


@dataclass(frozen=True, slots=True)
class Located:
    """The paths of a run's models, and the faults of the others."""

    files: Files
    missing: list[Missing]
    unusable: Mapping[str, FetchError]
    """Why a given file cannot be used, by ``model``, ``draft`` and ``mmproj``."""

    @property
    def lacking(self) -> list[str]:
        """The places without a file."""
        return [*(each.place for each in self.missing), *self.unusable]


def located(run: Run, directory: Path, given: Mapping[str, Path]) -> Located:
    """The models of a run on this machine, and the missing ones.

    A given file comes first, then the models directory, then the cache of the Hub's own client.
    The Hub is asked for the files of a missing one.
    """
    wanted = model_files.of_preset(run.preset) if run.preset else {}
    found, missing, unusable = [], [], {}
    for place, path in given.items():
        try:
            found.append(given_files({place: path}))
        except FetchError as error:
            unusable[place] = error
    for place, file in wanted.items():
        if place in given:
            continue
        here = _in_directory(place, file, directory) or _in_cache(place, file)
        if here is not None:
            found.append(here)
        else:
            missing.append(_missing(place, file, directory))
    return Located(joined(*found), missing, unusable)


def _in_directory(place: str, file: ModelFile, directory: Path) -> Files | None:
    found = model_files.in_directory(file, directory)
    if found is None:
        return None
    if not found.resolve().is_relative_to(directory.resolve()):
        return given_files({place: found})  # a link that leads out of the mounted directory
    path = f"{DIRECTORY}/{found.relative_to(directory).as_posix()}"
    return Files({place: path}, (Mount(str(directory), DIRECTORY),))


def _in_cache(place: str, file: ModelFile) -> Files | None:
    if file.repository is None:
        return None
    snapshot = models.cached(file.repository, file.revision, whole=file.whole)
    names = model_files.complete(file, model_files.names_below(snapshot)) if snapshot else []
    if snapshot is None or not names:
        return None
    if not file.whole:
        return given_files({place: snapshot / names[0]})
    folder = snapshot.parents[1]  # the snapshot has links to the blobs beside it
    inside = f"{CACHE}/{folder.name}"
    path = f"{inside}/{snapshot.relative_to(folder).as_posix()}"
    return Files({place: path}, (Mount(str(folder), inside),))


def _missing(place: str, file: ModelFile, directory: Path) -> Missing:
    repository, fetches = file.repository, []
    if repository is None:
        return Missing(place, file, directory)
    try:
        listed = {each.path: each for each in models.hub_files(repository, file.revision)}
        names = model_files.chosen(file, listed)
        for name in sorted(names, key=lambda name: name in model_files.CONFIGURATIONS):
            there = listed[name]
            stated = file.sha256 if len(names) == 1 else None
            if stated and there.sha256 and stated != there.sha256:
                why = f"the preset has sha256 {stated}, the Hub {there.sha256}"
                why = f"{repository}:{name} is not the file of the preset: {why}"
                return Missing(place, file, directory, why=why)
            location = on_the_hub(repository, name, file.revision)
            target = directory / repository / name
            fetches.append(Fetch(location, name, target, there.size, stated or there.sha256))
    except FetchError as error:
        return Missing(place, file, directory, why=f"{error.what}: {error.why}")
    why = "" if names else f"{repository} does not have it"
    return Missing(place, file, directory, tuple(fetches), why)
