"""The pinned inputs of recipes and bases: Debian packages and Python wheels as exact files, and all
inputs mirrored on this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, get_args

from builder.build import roots
from builder.core.errors import RecipeError
from builder.core.log import Log
from builder.core.platforms import Architecture, Platforms, architecture
from builder.core.settings import Servers, Settings
from builder.engines.families import BASES, ENGINES
from builder.engines.family import StagePackages
from builder.plan.inputs import AnyEntry, GitCommit, PypiFile, lock_file, locked_files, suite_of
from builder.recipes import edit, locks
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.locks import DebianFile, DebianLock, Install, PinnedFile
from builder.recipes.patches import AddPatch, ScriptPatch
from builder.recipes.schema import BasePython, BaseRecipe, Python, Recipe
from builder.sources import apt, gather, npm, pypi, releases
from builder.sources.apt import AptSource, PackageArchive, deb822
from builder.sources.patches import pieces
from builder.sources.releases import Solver, installed, open_solver, resolve, smallest_root
from builder.upstream import track
from builder.upstream.patches import PatchSet

SHIPPED = ("root", "runtime")
"""The stages whose packages are in images."""
Lock = TypeVar("Lock", DebianLock, locks.Lock)


@dataclass(frozen=True, slots=True)
class NewLock:
    """A lock file to write, and the difference from the present one."""

    file: Path
    text: str
    files: tuple[DebianFile | PinnedFile, ...]
    size: int
    """Bytes to download; 0: the index does not give all sizes."""
    changes: tuple[str, ...]
    recipe: tuple[Path, str] | None = None
    """The file and the new text of the recipe, where it did not name the lock."""

    def described(self) -> list[dict[str, Any]]:
        """The files as JSON data."""
        return [
            asdict(each)
            if isinstance(each, PinnedFile)
            else {"name": each.name, **each.model_dump()}
            for each in self.files
        ]

    def write(self) -> None:
        """Write the lock, and the recipe if it did not name it.  Raises ``WorldError``."""
        self.file.parent.mkdir(exist_ok=True)
        edit.write(self.file, self.text)
        if self.recipe is not None:
            edit.write(*self.recipe)


def _present(file: Path | None, read: Callable[[Path], Lock], log: Log) -> Lock | None:
    if file is None or not file.exists():
        return None
    try:
        return read(file)
    except RecipeError as error:
        log(f"{error.what}; writing a new one")
        return None


def _changes(
    before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """The changes by package, "NAME OLD -> NEW"; both have digests by version, by name.

    A package of Debian has several versions where the architectures differ.
    """
    for name in sorted({*before, *after}):
        was, now = before.get(name, {}), after.get(name, {})
        if was.keys() != now.keys():
            known, new = (", ".join(sorted(each)) for each in (was, now))
            yield f"{name} {known or 'added'} -> {new or 'removed'}"
        elif was != now:
            yield f"{name} {', '.join(now)}: different file"


# Debian's packages.


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

    def make(self, entry: AnyEntry) -> NewLock:
        """Resolve the packages of an entry to the newest versions.

        Raises ``RecipeError`` where it has none, or a base below it is not locked, or Debian does
        not have a package; ``FetchError`` where the archive does not answer.
        """
        base = entry.name if isinstance(entry.recipe, BaseRecipe) else entry.recipe.base
        suite, wanted = suite_of(self.catalog, base), [*all_wanted(entry.recipe)]
        if suite is None:
            raise RecipeError(
                f"the Debian packages of {entry.name} cannot be locked",
                "no base below it is a Debian root of this catalog",
            )
        self.log(f"resolving the Debian packages of {entry.name}")
        installs = [self._install(entry, suite, each, platforms) for each, platforms in wanted]
        as_of = max(self._solver(suite, each).as_of() for each, _ in wanted)
        made = locks.make(suite, as_of, installs)
        file = lock_file(entry)
        old = _present(file, lambda file: locks.read(file, entry.name), self.log)
        if old is not None and (old.suite, old.install) == (made.suite, made.install):
            made = old  # a new date alone changes nothing
        name = file or entry.file.parent / "locks" / f"{entry.name}.debian.toml"
        self._made[entry.name] = made
        files = tuple(dict.fromkeys(file for each in made.install for file in each.files))
        return NewLock(
            name,
            locks.text_of(made, entry.name),
            files,
            sum(each.size for each in files),
            tuple(_changes(_versions(old), _versions(made)) if old else ()),
            None if file else (entry.file, _naming(entry, name)),
        )

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
                    lock = self.lock(base)
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
        if self.sources is None and found.sources:
            return found
        sources = self.sources or apt.newest_snapshots(suite, self.servers)
        return replace(found, sources=tuple(sources))

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

    def updates(
        self, entry: AnyEntry, targets: Collection[Architecture]
    ) -> dict[str, tuple[str, str]]:
        """The packages of an entry's images for ``targets`` that Debian's security archive has in a
        newer version than the lock: both versions by name.

        Raises ``FetchError``, ``WorldError`` where the archive cannot be read.
        """
        lock, found = self.lock(entry), dict[str, tuple[str, str]]()
        for install in lock.install if lock else ():
            if install.stage not in SHIPPED or install.architecture not in targets or not lock:
                continue
            wanted = StagePackages(install.stage, "", install.architecture, ())
            newest = self._solver(lock.suite, wanted).security()
            for file in install.files:
                version = newest.get(file.name, "")
                if version and releases.is_newer(version, file.version):
                    found[file.name] = file.version, version
        return found

    def mended(self, entry: AnyEntry, name: str, since: str) -> list[str]:
        """The CVEs that a package of the lock that was made for an entry names since a version."""
        lock = self._made[entry.name]
        file = next(each for one in lock.install for each in one.files if each.name == name)
        place = self._archive(lock.suite)
        (deb,) = apt.fetch([file], lock.as_of, place, self.cache, self.log)
        return releases.mended(deb, since)

    def lock(self, entry: AnyEntry) -> DebianLock | None:
        """The Debian lock that was made for an entry, else the one that it names; or None."""
        if entry.name in self._made:
            return self._made[entry.name]
        file = lock_file(entry)
        return locks.read(file, entry.name) if file is not None else None


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
        return BASES[recipe.family].debian(recipe, platforms)
    return ENGINES[recipe.family].debian(recipe, platforms)


def _versions(lock: DebianLock) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for file in (file for each in lock.install for file in each.files):
        found.setdefault(file.name, {})[file.version] = ""
    return found


def _naming(entry: AnyEntry, file: Path) -> str:
    name = file.relative_to(entry.file.parent).as_posix()
    text = edit.with_key(entry.text, "debian", "lock", name)
    if isinstance(entry.recipe, BaseRecipe) and entry.recipe.root is not None:
        text = edit.edited(text, {("root", "as_of"): None})
    return text


# Requirements, resolved to the exact wheels of PyPI.

# https://packages.debian.org/search?keywords=python3&exact=1
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}


def _python_below(catalog: Catalog, base: str | None) -> str:
    """The Python ("3.13") of the Debian root below a base."""
    for recipe in (catalog.base(name).recipe for name in catalog.chain(base)):
        if recipe.root is not None and recipe.root.suite in PYTHON_OF:
            return PYTHON_OF[recipe.root.suite]
    raise RecipeError(
        f"the Python version of the base {base} is not known", hint="name it: --python 3.13"
    )


def make_lock(
    entry: AnyEntry, python: str | None, catalog: Catalog, cache: Path, log: Log
) -> NewLock:
    """Resolve the requirements of a recipe or a base to the newest compatible versions.

    Raises ``RecipeError`` where there are none, ``FetchError`` when the index does not answer.
    """
    wanted: Python | BasePython | None = entry.recipe.python
    if wanted is None or not wanted.requirements:
        raise RecipeError(
            f"{entry.name} has no requirements to lock",
            hint='add them to the recipe: [python] requirements = ["NAME==VERSION"]',
        )
    version = python or _python_below(catalog, entry.recipe.base)
    log(f"resolving {', '.join(wanted.requirements)} for CPython {version} on linux x86_64")
    pins = resolve(tuple(wanted.requirements), version, cache)
    if not pins:
        raise RecipeError(
            f"no requirement of {entry.name} applies to CPython {version}",
            hint="correct the markers of its requirements, or name another version: --python",
        )
    log(f"looking for the wheels of {len(pins)} packages")
    found = releases.find_wheels(pins, version)
    files = tuple(PinnedFile(file.name, file.version, file.sha256) for file in found)
    file = entry.file.parent / wanted.lock
    known = _present(file, locks.read_lock, log)
    before, after = (
        {each.name: {each.version: each.sha256} for each in several}
        for several in (known.runtime if known else (), files)
    )
    tables = [
        f'[[{table}]]\nname    = "{each.name}"\nversion = "{each.version}"\n'
        f'sha256  = "{each.sha256}"\n'
        for table, several in (("build", known.build if known else ()), ("runtime", files))
        for each in several
    ]
    head = (
        f"# Made by `builder pin lock {entry.name}`, for linux x86_64; every file is taken by its "
        f'digest.\npython = "{version}"\n'
    )
    size = sum(each.size for each in found) if all(each.size for each in found) else 0
    return NewLock(file, "\n".join([head, *tables]), files, size, tuple(_changes(before, after)))


# Every pinned input, mirrored on this machine.


def mirror(patch_set: PatchSet, entry: Entry[Recipe], settings: Settings) -> Iterator[str]:
    """Mirror the pinned inputs of a recipe, and the history that `patch check` reads.

    Yields a line for each input.  Raises ``FetchError`` where one cannot be fetched.
    """
    repositories = patch_set.repositories
    source = patch_set.source
    if isinstance(source, GitCommit):
        gather.tree_of(source, repositories, patch_set.context.work)
        yield f"{source.url} {source.commit}"
        target = track.upstream_target(source.url, patch_set.track, repositories)
        repositories.walk(source.url, source.commit, target.commit)
        yield f"{source.url} {target.name}: history up to {target.commit}"
    for planned in patch_set.patches:
        if isinstance(planned.patch, ScriptPatch | AddPatch):
            repositories.pin(planned.url, planned.patch.origin.after)
        else:
            for _ in pieces(patch_set.context, planned, ""):
                pass
        yield f"{planned.name} of {planned.url or 'this repository'}"
    files = packages_of(entry, entry.recipe.targets)
    files += [source.file] if isinstance(source, PypiFile) else []
    pypi.fetch(files, repositories.cache, repositories.log)
    yield from (f"{file.name} {file.version}" for file in files)
    if page := ENGINES[entry.recipe.family].page(entry.recipe):
        tree = gather.tree_of(source, repositories, patch_set.context.work)
        lock = f"{page}/{npm.LOCK}"
        for machine in dict.fromkeys((architecture() or "amd64", *entry.recipe.targets)):
            packages = npm.read(repositories.scratch.file(tree, lock), machine)
            npm.fetch(packages, repositories.cache, repositories.log)
            yield f"{len(packages)} packages of {lock} on {machine}"
    yield from _mirror_debian(entry, entry.recipe.targets, settings, repositories.log)


def packages_of(
    entry: Entry[Recipe] | Entry[BaseRecipe], targets: Iterable[Architecture]
) -> list[PinnedFile]:
    """The files of the package index that builds for these targets need on this machine.

    The packages of native builds: a cross build takes its compiler from this machine's, and the
    libraries from the target's.
    """
    machine = architecture() or "amd64"
    found: dict[PinnedFile, None] = {}
    for target in dict.fromkeys((machine, *targets)):
        platforms, recipe = Platforms(target, target), entry.recipe
        if isinstance(recipe, BaseRecipe):
            packages = BASES[recipe.family].packages(recipe, entry.file.parent, platforms)
        else:
            packages = ENGINES[recipe.family].packages(recipe, entry.file.parent, platforms)
        for files in packages.values():
            found.update(dict.fromkeys(files))
    return [*found]


def mirror_base(
    entry: Entry[BaseRecipe], targets: Collection[Architecture], settings: Settings, log: Log
) -> Iterator[str]:
    """Mirror the packages and the published image of a base for these targets; like ``mirror``."""
    base = entry.recipe
    files = packages_of(entry, targets)
    pypi.fetch(files, settings.cache_dir, log)
    yield from (f"{file.name} {file.version}" for file in files)
    published = base.published
    if published is not None and published.digest is not None:
        local = roots.fetch(base.name, published, published.digest, log).reference
        yield f"{published.image} in Docker, as {local}"
    elif published is not None:
        yield f"{published.image} is not mirrored: it is not pinned ({published.note})"
    yield from _mirror_debian(entry, targets, settings, log)


def _mirror_debian(
    entry: AnyEntry, targets: Iterable[Architecture], settings: Settings, log: Log
) -> Iterator[str]:
    """Fetch the locked Debian packages that builds for these targets need on this machine."""
    file = lock_file(entry)
    if file is None:
        return
    lock = locks.read(file, entry.name)
    machine = architecture() or "amd64"
    wanted = (wanted_on(entry.recipe, Platforms(machine, target)) for target in targets)
    keys = {each.key for several in wanted for each in several}
    needed = [deb for each in lock.install if each.key in keys for deb in each.files]
    place = apt.archive_of(lock.suite, settings.debian_servers)
    apt.fetch(needed, lock.as_of, place, settings.cache_dir, log)
    yield from (f"{each.name} {each.version} {each.architecture}" for each in needed)
