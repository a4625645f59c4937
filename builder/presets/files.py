"""The models of a run on this machine, and the missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.core import sizes
from builder.core.errors import FetchError
from builder.presets import hub, model_files
from builder.presets.described import given_files, joined
from builder.presets.download import Fetch
from builder.presets.model_files import DIRECTORY
from builder.presets.models import on_the_hub
from builder.presets.schema import ModelFile
from builder.presets.service import OPTIONS_OF_PLACES, Files, Mount, Run

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
    snapshot = hub.cached(file.repository, file.revision, whole=file.whole)
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
        listed = {each.path: each for each in hub.files(repository, file.revision)}
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
