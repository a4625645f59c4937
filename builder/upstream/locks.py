"""Locks: the Debian packages and the Python wheels of a recipe or a base as exact files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, get_args

from builder.core.errors import RecipeError
from builder.core.log import Log
from builder.core.platforms import Architecture, Platforms
from builder.core.settings import Servers
from builder.engines import families
from builder.engines.family import StagePackages
from builder.plan.inputs import AnyEntry, lock_file, locked_files, suite_of
from builder.recipes import edit, locks
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.locks import DebianFile, DebianLock, Install, PinnedFile
from builder.recipes.schema import BasePython, BaseRecipe, Python, Recipe
from builder.sources import apt, pypi
from builder.sources.apt import (
    AptSource,
    PackageArchive,
    Solver,
    deb822,
    installed,
    open_solver,
    smallest_root,
)
from builder.sources.pypi import resolve


@dataclass(frozen=True, slots=True)
class NewDebianLock:
    """A Debian lock to write, and the difference from the present one."""

    file: Path
    text: str
    entry: AnyEntry
    recipe_text: str
    """The text of the recipe, which names the lock."""
    files: tuple[DebianFile, ...]
    changes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)

    def described(self) -> list[dict[str, Any]]:
        """The files as JSON data."""
        return [{"name": each.name, **each.model_dump()} for each in self.files]

    def write(self) -> None:
        """Write the lock, and the recipe if it did not name it.  Raises ``WorldError``."""
        self.file.parent.mkdir(exist_ok=True)
        edit.write(self.file, self.text)
        if self.recipe_text != self.entry.text:
            edit.write(self.entry.file, self.recipe_text)


@dataclass(slots=True)
class DebianSession:
    """Package lists, each fetched once; ``work`` is a directory for them."""

    catalog: Catalog
    cache: Path
    work: Path
    log: Log
    servers: Servers = field(default_factory=Servers)
    sources: Sequence[AptSource] | None = None
    """The archives; None: the archives of ``servers``."""
    sources_text: str | None = None
    """The archives as sources.list(5) has them; None: signed by Debian."""
    _solvers: dict[tuple[str, ...], Solver] = field(default_factory=dict)
    _made: dict[str, DebianLock] = field(default_factory=dict)

    def make(self, entry: AnyEntry) -> NewDebianLock:
        """Resolve the packages of an entry to the newest versions.

        Raises ``RecipeError`` where it has none, or a base below it is not locked, or Debian does
        not have a package; ``FetchError`` where the archive does not answer.
        """
        suite, wanted = self.suite(entry), [*all_wanted(entry.recipe)]
        if suite is None:
            raise RecipeError(
                f"the Debian packages of {entry.name} cannot be locked",
                "no base below it is a Debian root of this catalog",
            )
        self.log(f"resolving the Debian packages of {entry.name}")
        installs = [self._install(entry, suite, each, platforms) for each, platforms in wanted]
        as_of = max(self._solver(suite, each).as_of() for each, _ in wanted)
        made = locks.make(suite, as_of, installs)
        old = self._old(entry)
        if old is not None and (old.suite, old.install) == (made.suite, made.install):
            made = old  # a new date alone changes nothing
        name = lock_file(entry) or entry.file.parent / "locks" / f"{entry.name}.debian.toml"
        self._made[entry.name] = made
        return NewDebianLock(
            name,
            locks.text_of(made, entry.name),
            entry,
            _naming(entry, name),
            tuple(dict.fromkeys(file for each in made.install for file in each.files)),
            tuple(changes(old, made)),
        )

    def suite(self, entry: AnyEntry) -> str | None:
        """The suite of the Debian root that an entry is, or stands on."""
        base = entry.name if isinstance(entry.recipe, BaseRecipe) else entry.recipe.base
        return suite_of(self.catalog, base)

    def _install(
        self, entry: AnyEntry, suite: str, wanted: StagePackages, platforms: Platforms
    ) -> Install:
        held = self._held(entry, wanted, platforms)
        root = [] if wanted.below else smallest_root(wanted.architecture)
        try:
            found = self._solver(suite, wanted).resolve(
                [*root, *wanted.packages], self._database(suite, held)
            )
        except RecipeError as error:
            what = f"the stage {wanted.stage} of {entry.name} cannot be resolved"
            raise RecipeError(what, error.why, error.hint) from error
        return Install(
            stage=wanted.stage,
            architecture=wanted.architecture,
            foreign=wanted.foreign,
            packages=list(wanted.packages),
            files=[DebianFile(**each) for each in found],
        )

    def _held(
        self, entry: AnyEntry, wanted: StagePackages, platforms: Platforms
    ) -> dict[tuple[str, str], tuple[datetime, DebianFile]]:
        """The packages of the stage that ``wanted`` begins with, with the dates of their locks."""
        if not wanted.below:
            return {}
        for name in self.catalog.chain(entry.recipe.base):
            base = self.catalog.base(name)
            for each in wanted_on(base.recipe, platforms):
                if each.stage == wanted.below and each.architecture == wanted.architecture:
                    lock = self._lock(base)
                    if lock is None:
                        raise RecipeError(
                            f"{entry.name} stands on {base.name}, which has no Debian lock",
                            hint=f"lock both: `builder pin lock {base.name} {entry.name}`",
                        )
                    files = locked_files(base, lock, each)
                    own = {(file.name, file.architecture): (lock.as_of, file) for file in files}
                    return self._held(base, each, platforms) | own
        raise RecipeError(f"no base of {entry.name} has the stage {wanted.below}")

    def _database(
        self, suite: str, held: dict[tuple[str, str], tuple[datetime, DebianFile]]
    ) -> str:
        """A database of dpkg with these packages, whose files are fetched."""
        debs = []
        place = self._archive(suite)
        for as_of in sorted({as_of for as_of, _ in held.values()}):
            files = [file for other, file in held.values() if other == as_of]
            debs += apt.fetch(files, as_of, place, self.cache, self.log)
        return installed(debs)

    def _archive(self, suite: str) -> PackageArchive:
        found = apt.archive_of(suite, self.servers)
        return found if self.sources is None else replace(found, sources=tuple(self.sources))

    def _solver(self, suite: str, wanted: StagePackages) -> Solver:
        """The package lists for a stage's architectures, fetched once."""
        architectures = [wanted.architecture, *([wanted.foreign] if wanted.foreign else [])]
        key = (suite, *architectures)
        if key not in self._solvers:
            self.log(f"fetching the package lists of {suite}, {' and '.join(architectures)}")
            sources = self._archive(suite).sources
            text = self.sources_text or deb822(sources)
            folder = self.work / "-".join(["apt", *key])
            self._solvers[key] = open_solver(sources, text, architectures, folder)
        return self._solvers[key]

    def _lock(self, entry: AnyEntry) -> DebianLock | None:
        """The lock of an entry: made in this session, else read from its file."""
        if entry.name in self._made:
            return self._made[entry.name]
        file = lock_file(entry)
        return locks.read(file, entry.name) if file is not None else None

    def _old(self, entry: AnyEntry) -> DebianLock | None:
        """The present lock; None where there is none, or, with a line in the log, it is damaged."""
        file = lock_file(entry)
        if file is None or not file.exists():
            return None
        try:
            return locks.read(file, entry.name)
        except RecipeError as error:
            self.log(f"{error.what}; writing a new one")
            return None


def has_packages(recipe: Recipe | BaseRecipe) -> bool:
    """Whether a stage of a recipe or of a base installs Debian packages, or is a Debian root."""
    return any(each.packages or not each.below for each, _ in all_wanted(recipe))


def all_wanted(recipe: Recipe | BaseRecipe) -> Iterator[tuple[StagePackages, Platforms]]:
    """The Debian packages of all stages, once for each platform that builds and is built for."""
    seen = set()
    for target, build in product(get_args(Architecture), repeat=2):
        platforms = Platforms(build, target)
        for each in wanted_on(recipe, platforms):
            if each.key not in seen:
                seen.add(each.key)
                yield each, platforms


def wanted_on(recipe: Recipe | BaseRecipe, platforms: Platforms) -> Sequence[StagePackages]:
    """The Debian packages of the stages of a recipe or of a base."""
    if isinstance(recipe, BaseRecipe):
        return families.BASES[recipe.family].debian(recipe, platforms)
    return families.ENGINES[recipe.family].debian(recipe, platforms)


def changes(old: DebianLock | None, new: DebianLock) -> Iterator[str]:
    """The changes of a new lock, a line for each package: "NAME OLD -> NEW"; none for a first lock.

    A package has several versions where the architectures differ.
    """
    if old is None:
        return
    before, after = _versions(old), _versions(new)
    for name in sorted({*before, *after}):
        was, now = before.get(name, set()), after.get(name, set())
        if was != now:
            yield f"{name} {_named(was, 'added')} -> {_named(now, 'removed')}"


def _versions(lock: DebianLock) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for install in lock.install:
        for file in install.files:
            found.setdefault(file.name, set()).add(file.version)
    return found


def _named(versions: set[str], none: str) -> str:
    return ", ".join(sorted(versions)) or none


def _naming(entry: AnyEntry, file: Path) -> str:
    """The text of a recipe that names its lock.  A root has no other date than its lock's."""
    if lock_file(entry) is not None:
        return entry.text
    name = file.relative_to(entry.file.parent).as_posix()
    text = edit.with_key(entry.text, "debian", "lock", name)
    if isinstance(entry.recipe, BaseRecipe) and entry.recipe.root is not None:
        text = edit.edited(text, {("root", "as_of"): None})
    return text


# Resolves requirements to the exact wheels of PyPI, for a lock file.

# https://packages.debian.org/search?keywords=python3&exact=1
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}


@dataclass(frozen=True, slots=True)
class Lockable:
    """The requirements of a recipe or a base; ``python`` is its Debian's ("3.13")."""

    name: str
    file: Path
    requirements: tuple[str, ...]
    python: str


@dataclass(frozen=True, slots=True)
class NewLock:
    """A lock file to write, and the difference from the present one."""

    file: Path
    text: str
    files: tuple[PinnedFile, ...]
    size: int
    """Bytes to download; 0: the index does not give all sizes."""
    changes: tuple[str, ...]

    def write(self) -> None:
        """Write the lock.  Raises ``WorldError``."""
        edit.write(self.file, self.text)

    def described(self) -> list[dict[str, Any]]:
        """The files as JSON data."""
        return [asdict(file) for file in self.files]


def lockable(catalog: Catalog, name: str) -> Lockable:
    """The requirements of a recipe or a base; raises ``RecipeError`` where it has none."""
    entry: Entry[Recipe] | Entry[BaseRecipe]
    entry = catalog.base(name) if name in catalog.bases else catalog.engine(name)
    python: Python | BasePython | None = entry.recipe.python
    if python is None or not python.requirements:
        raise RecipeError(
            f"{entry.name} has no requirements to lock",
            hint='add them to the recipe: [python] requirements = ["NAME==VERSION"]',
        )
    version = _python_below(catalog, entry.recipe.base)
    file = entry.file.parent / python.lock
    return Lockable(entry.name, file, tuple(python.requirements), version)


def _python_below(catalog: Catalog, base: str | None) -> str:
    for name in catalog.chain(base):
        recipe = catalog.base(name).recipe
        if recipe is not None and recipe.root is not None and recipe.root.suite in PYTHON_OF:
            return PYTHON_OF[recipe.root.suite]
    raise RecipeError(
        f"the Python version of the base {base} is not known", hint="name it: --python 3.13"
    )


def make_lock(wanted: Lockable, python: str | None, cache: Path, log: Log) -> NewLock:
    """Resolve the requirements to the newest compatible versions.

    Raises ``RecipeError`` where there are none, ``FetchError`` when the index does not answer.
    """
    version = python or wanted.python
    log(f"resolving {', '.join(wanted.requirements)} for CPython {version} on linux x86_64")
    pins = resolve(wanted.requirements, version, cache)
    if not pins:
        raise RecipeError(
            f"no requirement of {wanted.name} applies to CPython {version}",
            hint="correct the markers of its requirements, or name another version: --python",
        )
    log(f"looking for the wheels of {len(pins)} packages")
    found = pypi.find_wheels(pins, version)
    files = tuple(PinnedFile(file.name, file.version, file.sha256) for file in found)
    known = _known(wanted.file, log)
    before = {file.name: file for file in known.runtime} if known else {}
    after = {file.name: file for file in files}
    return NewLock(
        wanted.file,
        _text(wanted, version, known.build if known else (), files),
        files,
        sum(file.size for file in found) if all(file.size for file in found) else 0,
        tuple(_changes(before, after)),
    )


def _known(file: Path, log: Log) -> locks.Lock | None:
    """The present lock; None where there is none, or, with a line in the log, it is damaged."""
    if not file.exists():
        return None
    try:
        return locks.read_lock(file)
    except RecipeError as error:
        log(f"{error.what}; writing a new one")
        return None


def _changes(before: Mapping[str, PinnedFile], after: Mapping[str, PinnedFile]) -> list[str]:
    lines = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if old is not None and new is not None and old.version == new.version:
            lines.append(f"{name} {new.version}: different file")
        else:
            lines.append(
                f"{name} {old.version if old else 'added'} -> {new.version if new else 'removed'}"
            )
    return lines


def _text(
    wanted: Lockable, python: str, build: tuple[PinnedFile, ...], runtime: tuple[PinnedFile, ...]
) -> str:
    tables = [
        f'[[{table}]]\nname    = "{file.name}"\nversion = "{file.version}"\n'
        f'sha256  = "{file.sha256}"\n'
        for table, files in (("build", build), ("runtime", runtime))
        for file in files
    ]
    head = (
        f"# Made by `builder pin lock {wanted.name}`, for linux x86_64; every file is taken by its "
        f'digest.\npython = "{python}"\n'
    )
    return "\n".join([head, *tables])
