"""What Docker, the caches and the state directory hold, by what it is for, and its removal.

An image is needed while a container, a tag that a person or a recipe gave it, or the build key of
a recipe of this catalog leads to it.  Caches are needed by nobody, and cost their making again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import get_args

from builder.build.ccache import ID
from builder.core.errors import BuilderError, BusyError, UsageError, suggestion
from builder.core.files import file_lock
from builder.core.log import Log
from builder.core.platforms import GNU_TRIPLETS, Platform
from builder.core.settings import RootWay, Settings
from builder.docker import engine as docker
from builder.docker.usage import Held, Usage, prune
from builder.engines.layout import (
    BASE_NAME,
    BASES,
    LABEL_BASE,
    LABEL_KEY,
    LABEL_RECIPE,
    LABEL_RECIPE_KEY,
    REPRODUCED,
)
from builder.plan.resolver import Resolver
from builder.recipes.catalog import BrokenEntry, Catalog

DIGITS = 12  # of a key, in tags
SETTLED = ("images", "bases", "reproduced", "work")
"""What is removed where nothing is named: nobody needs it."""
CACHES = {
    "git": ("mirrors of sources and patches, to be fetched again", ["git"]),
    "pypi": ("wheels and sdists, to be fetched again", ["pypi", "npm", "uv"]),
    "debian": ("Debian packages, to be fetched again", ["debian"]),
    "programs": (
        "simulated cards, kernel tests and readings of images, to be made again",
        ["interpreter", "numbers", "scans", "simulator"],
    ),
}
FACTS = ("candidates", "ptx", "records")
OF_DOCKER = ("images", "bases", "reproduced", "gone", "layers", "ccache")
EVERYTHING = (*SETTLED, "gone", "layers", "ccache", *CACHES, "logs", "records")


@dataclass(slots=True)
class Row:
    """One kind of thing, and what it is for.

    Of an image, the layers count that no other one has.
    """

    name: str
    about: str
    things: dict[str, int] = field(default_factory=dict)
    """Bytes by the name of an image, the record or the kind of BuildKit's cache, or the path."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(self.things.values())

    def add(self, thing: str, size: int) -> None:
        """Count one more thing."""
        self.things[thing] = self.things.get(thing, 0) + size


# Docker's part.


def of_docker(catalog: Catalog, usage: Usage) -> list[Row]:
    """The images that builder made, and BuildKit's cache."""
    rows = {
        name: Row(name, about)
        for name, about in (
            ("needed", "images of today's recipes, of tags and of containers: they stay"),
            ("images", "images of earlier states of recipes, also refused ones"),
            ("bases", "bases of earlier states, and bases that no recipe here starts from"),
            ("reproduced", "images of comparisons that were stopped"),
            ("gone", "images of recipes that this checkout does not have"),
            ("layers", "BuildKit's cache of all projects on this Docker, to be built again"),
            ("ccache", "the compiler cache: without it an engine takes half an hour or more"),
        )
    }
    needs = _Needs(catalog, usage)
    for each in usage.images:
        if name := needs.row_of(each):
            rows[name].add(" ".join(each.names or [each.digest]), each.size)
    for record in usage.cache:
        if record.used:
            continue
        if record.kind != "exec.cachemount":
            if not record.shared:
                rows["layers"].add(record.kind, record.size)
        elif f'with id "/{ID}"' in record.about:
            rows["ccache"].add(record.name, record.size)
    return [*rows.values()]


class _Needs:
    """What needs an image: containers, tags, and the keys of a catalog's recipes and bases, on
    whatever they are compiled.  Where a key cannot be known, the image is needed."""

    def __init__(self, catalog: Catalog, usage: Usage) -> None:
        self._catalog = catalog
        self._keys: dict[tuple[str, str], frozenset[str] | None] = {}
        self._below: set[tuple[str, str]] = set()
        """The bases, each with the end of its tags, that needed images of recipes were made on."""
        for image in usage.images:
            if LABEL_RECIPE in image.labels and self.row_of(image) == "needed":
                names = [image.labels.get(BASE_NAME, "")]
                self._below.update((base, end) for base, end in _bases_in(names))

    def row_of(self, image: Held) -> str:
        """The row of an image; empty: builder did not make it."""
        labels = image.labels
        recipe, base = labels.get(LABEL_RECIPE, ""), labels.get(LABEL_BASE, "")
        above = {name.partition("/")[0] for name in image.names}
        if not (recipe or base or above & {BASES, REPRODUCED}):
            return ""
        if image.used or _is_tagged(image):
            return "needed"
        if REPRODUCED in above:
            return "reproduced"
        if BASES in above or not recipe:
            found = any(self._needs_base(*each) for each in _bases_in(image.names))
            return "needed" if found else "bases"
        if recipe not in self._catalog.engines:
            return "gone"
        return "needed" if self._needs(recipe, image) else "images"

    def _needs(self, recipe: str, image: Held) -> bool:
        entry = self._catalog.engines[recipe]
        platforms = () if isinstance(entry, BrokenEntry) else entry.recipe.platform
        found = [self._known(recipe, platform) for platform in platforms]
        key = image.labels.get(LABEL_RECIPE_KEY) or image.labels.get(LABEL_KEY, "")
        return not found or any(keys is None or key in keys for keys in found)

    def _known(self, recipe: str, platform: Platform) -> frozenset[str] | None:
        at = recipe, str(platform)
        if at not in self._keys:
            self._keys[at] = None
            with suppress(BuilderError):  # such as a source tree that is missing
                self._keys[at] = Resolver(self._catalog, "amd64").recipe_keys(recipe, platform)
        return self._keys[at]

    def _needs_base(self, base: str, end: str) -> bool:
        if base not in self._catalog.bases:
            return False
        at = "", base
        if at not in self._keys:
            self._keys[at] = self._ends(base)
        known = self._keys[at]
        if (base, end) in self._below or (known and end in known):
            return True
        return known is None and base not in {name for name, _ in self._below}

    def _ends(self, base: str) -> frozenset[str] | None:
        """The ends of the tags that a base may have; None: nothing says which image it starts from
        today."""
        found = set()
        with suppress(BuilderError):
            entry, below = Resolver(self._catalog, "amd64").lowest(base)
            if entry.recipe.published and below.digest is None:
                return None
            found.add((below.digest or "").removeprefix("sha256:")[:DIGITS])
        for build, target, way in product(GNU_TRIPLETS, GNU_TRIPLETS, get_args(RootWay)):
            with suppress(BuilderError):  # a family that is not cross-compiled
                resolver = Resolver(self._catalog, build, way)
                found.add(resolver.resolve_base(base, target).short_key)
        return frozenset(found)


def _bases_in(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Base and digits of each name such as builder-base/cuda-13.0:devel-0123456789ab."""
    for name in names:
        above, _, rest = name.partition("/")
        if above == BASES:
            base, _, tag = rest.partition(":")
            yield base, tag.rpartition("-")[2]


def _is_tagged(image: Held) -> bool:
    """Whether an image has a name that more than a build of its very key leads to."""
    key = image.labels.get(LABEL_KEY, "")[:DIGITS]
    return not all(
        name.startswith((f"{BASES}/", f"{REPRODUCED}/"))
        or (key and name.endswith(key))
        or name.endswith("-replaced")  # of a load that was killed
        for name in image.names
    )


# The part of files.


def of_files(settings: Settings, images: Sequence[Held] | None) -> list[Row]:
    """Caches, logs and records; ``images`` is None where Docker does not answer: the records stay.

    ``things`` are paths.  A directory of work has an owner while its lock is held.
    """
    cache, state = settings.cache_dir, settings.state_dir
    rows = [Row("work", "directories of runs that were killed")]
    for folder in sorted((cache / "work").glob("*/")):
        if not folder.is_symlink() and not _is_held(folder.with_name(f"{folder.name}.lock")):
            rows[0].add(str(folder), size_of(folder))
    for name, (about, folders) in CACHES.items():
        rows.append(_folders(name, about, cache, folders))
    rows.append(_folders("logs", "logs of builds, and reports of bugs", state, ["crashes", "logs"]))
    if images is not None:
        there = {image.labels.get(LABEL_KEY, "")[:12] for image in images}
        rows.append(Row("records", "records, verdicts and PTX of images that Docker does not have"))
        for file in sorted(file for kind in FACTS for file in (state / kind).glob("*/*")):
            if file.name.partition(".")[0] not in there:
                rows[-1].add(str(file), size_of(file))
    return rows


def _folders(name: str, about: str, root: Path, folders: Sequence[str]) -> Row:
    row = Row(name, about)
    for folder in folders:
        for each in sorted((root / folder).glob("*")):
            row.add(str(each), size_of(each))
    return row


def size_of(path: Path) -> int:
    """The bytes that a file, or a directory with all in it, takes on its disk."""
    found: dict[tuple[int, int], int] = {}
    waiting = [path]
    for folder, names, files in os.walk(path):
        waiting += [Path(folder, name) for name in (*names, *files)]
    for each in waiting:
        with suppress(OSError):  # another run has removed it
            status = each.lstat()
            found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def models_of(folder: Path, usage: Usage | None) -> Row:
    """The files OWNER/NAME/FILE of the models directory, without models that a container serves."""
    row = Row("models", f"models in {folder}: --model OWNER/NAME/FILE removes one")
    served = [(Path(source).resolve(), words) for source, words in (usage.served if usage else ())]
    for model in sorted(folder.glob("*/*/")):
        name, real = str(model.relative_to(folder)), model.resolve()
        of_model = any(
            source.is_relative_to(real) or (real.is_relative_to(source) and name in words)
            for source, words in served
        )
        for file in sorted(each for each in model.rglob("*") if each.is_file()):
            if not of_model and file.resolve() not in {source for source, _ in served}:
                row.add(str(file), size_of(file))
    return row


# The removal.


def busy(cache: Path) -> list[str]:
    """The runs on this machine that are at work: they hold locks below the cache."""
    locks = [*(cache / "locks").glob("*.lock"), *(cache / "work").glob("?*.lock")]
    found = {lock.stem for lock in locks if _is_held(lock)}
    return sorted(
        found | {lock.parent.name for lock in (cache / "git").glob("*/lock") if _is_held(lock)}
    )


def _is_held(lock: Path) -> bool:
    try:
        with file_lock(lock, wait=False) if lock.exists() else nullcontext():
            return False
    except BlockingIOError:
        return True


def chosen(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows to remove: named ones, all but what is needed and models, or the settled ones.

    Raises ``UsageError`` for another name.
    """
    for name in names:
        if name not in {*EVERYTHING, "all"}:
            what = f"nothing that clean removes is named {name}{suggestion(name, [*EVERYTHING])}"
            raise UsageError(what, f"there are: {', '.join([*EVERYTHING, 'all'])}")
    most = [each for each in EVERYTHING if each != "gone"] if "all" in names else []
    return [row for row in rows if row.name in {*most, *(names or SETTLED)} and row.things]


def remove(rows: Sequence[Row], settings: Settings, log: Log) -> Iterator[str]:
    """Remove what the rows hold; the reasons why something stays.

    Runs that begin in the meantime wait.  Raises ``BusyError`` where one is at work.
    """
    with file_lock(settings.cache_dir / "work" / ".lock"):
        if runs := busy(settings.cache_dir):
            raise BusyError(
                "another run on this machine is at work",
                f"it holds {', '.join(runs)}",
                "wait for it, then run the same command again",
            )
        for row in rows:
            log(f"removing {row.name}")
            if row.name in {"layers", "ccache"}:
                filters = {
                    f"{'id' if row.name == 'ccache' else 'type'}={each}" for each in row.things
                }
                yield from filter(None, map(prune, sorted(filters)))
                continue
            for thing in row.things:
                yield from _removed(row, thing)


def _removed(row: Row, thing: str) -> Iterator[str]:
    if row.name in {"images", "gone", "bases", "reproduced"}:
        for name in thing.split():
            if why := docker.untag(name):
                yield f"{name}: {why}"
        return
    path = Path(thing)
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
            if row.name == "work":
                path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        yield f"{error.filename or path}: {error.strerror}"
