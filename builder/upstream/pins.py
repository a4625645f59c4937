"""The pinned inputs of recipes: whether they can still be fetched, and mirroring them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from builder import families
from builder.errors import BuilderError, GoneError
from builder.families.family import Packages
from builder.patches.series import pieces
from builder.plan import published_image
from builder.plan.inputs import (
    Archive,
    GitCommit,
    Installed,
    LocalTree,
    PlannedPatch,
    PypiFile,
    SourceChoice,
    resolve_patches,
    resolve_source,
)
from builder.platforms import Architecture, Platforms, architecture
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import AddPatch, BaseRecipe, PickPatch, PullPatch, Recipe, ScriptPatch
from builder.sources import checkout
from builder.tools.apt.servers import Servers
from builder.tools.docker import imagetools
from builder.tools.git import server
from builder.tools.git.arguments import relative_url
from builder.tools.git.errors import GitError
from builder.tools.git.repository import GITLINK, GitRepository
from builder.tools.git.scratch import Scratch
from builder.tools.git.submodules import submodule_urls
from builder.tools.log import Log
from builder.tools.python import pypi
from builder.tools.web import downloads
from builder.upstream import track
from builder.upstream.compatibility import PatchSet
from builder.upstream.debian_pins import Verifier, files_of, lock_of
from builder.upstream.lock_debian import AnyEntry

CONCURRENT = 8  # requests of `pin verify`, each to another location
REGISTRY_PATIENCE = 30.0  # seconds
Key = tuple[str, str]  # of a pin: its name and its location


@dataclass(frozen=True, slots=True)
class PinStatus:
    """A pinned input, and whether it can still be fetched.

    ``gone``: its location answers, and does not have it; ``unknown``: it does not answer.
    """

    recipe: str
    kind: str
    """commit, submodule, pull, pick, script, add, file, archive, debian or image."""
    what: str
    """The commit, the digest, or the name and the version."""
    where: str
    """The URL, the image, the lock file, or the sha256 of a file on PyPI."""
    state: Literal["ok", "gone", "unknown"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Pin:
    """A pinned input, as in ``PinStatus``.

    ``check`` requests it, and gives the pins that it contains; it raises ``BuilderError``.
    """

    recipe: str
    kind: str
    what: str
    where: str
    check: Callable[[], Iterable[_Pin] | None]


def verify(catalog: Catalog, names: list[str], work: Path, servers: Servers) -> Iterator[PinStatus]:
    """Check every pin of recipes and of their bases; a pin that several share is checked once.

    Pins are checked concurrently, pins of one repository one after the other.  ``work`` is a
    directory for the commits and trees that have to be fetched, ``servers`` the servers of Debian
    packages.  Raises ``RecipeError`` for a broken recipe.
    """
    pins = [*_pins(catalog, names, _Kinds(work, pypi.Index(), Verifier(servers)))]
    with ThreadPoolExecutor(CONCURRENT) as pool:
        yield from _answers(pool, pins, set())


def _pins(catalog: Catalog, names: list[str], kinds: _Kinds) -> Iterator[_Pin]:
    bases: dict[str, dict[Architecture, None]] = {}
    for name in names:
        entry = catalog.engine(name)
        yield from kinds.source(name, resolve_source(entry.recipe, catalog.root))
        for planned in resolve_patches(entry, catalog.root):
            yield from kinds.patch(name, planned)
        yield from kinds.files(name, packages_of(entry, entry.recipe.targets))
        yield from kinds.debian(entry)
        for base in families.bases_of(catalog, entry.recipe):
            bases.setdefault(base, {}).update(dict.fromkeys(entry.recipe.targets))
    for name, targets in bases.items():
        yield from kinds.base(catalog.base(name), targets)


def _answers(
    pool: Executor, pins: Iterable[_Pin], seen: set[tuple[str, str]]
) -> Iterator[PinStatus]:
    """The status of each pin, in order, followed by the pins that it contains."""
    fresh: dict[Key, _Pin] = {}
    for pin in pins:
        if (pin.what, pin.where) not in seen:
            fresh.setdefault((pin.what, pin.where), pin)
    seen |= fresh.keys()
    places: dict[str, list[_Pin]] = {}
    for pin in fresh.values():
        places.setdefault(pin.where, []).append(pin)
    answered: dict[Key, tuple[PinStatus, list[_Pin]]] = {}
    for pairs in pool.map(_check_all, places.values()):
        answered |= {(status.what, status.where): (status, more) for status, more in pairs}
    for key in fresh:
        status, more = answered[key]
        yield status
        yield from _answers(pool, more, seen)


def _check_all(pins: list[_Pin]) -> list[tuple[PinStatus, list[_Pin]]]:
    """Check the pins of one location, with the pins that they contain.

    A location that is out of reach is asked once.
    """
    answers = []
    silent: BuilderError | None = None
    for pin in pins:
        more: list[_Pin] = []
        state: Literal["ok", "gone", "unknown"] = "ok"
        why = ""
        try:
            if silent is not None:
                raise silent
            more = [*(pin.check() or ())]
        except BuilderError as error:
            why = " ".join(part for part in (error.what, error.why) if part)
            state = "gone" if isinstance(error, GoneError) else "unknown"
            if isinstance(error.__cause__, GitError) and error.__cause__.concerns_server:
                silent = error
        answers.append((PinStatus(pin.recipe, pin.kind, pin.what, pin.where, state, why), more))
    return answers


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Makes the pins of each kind; their commits are fetched to ``work``."""

    work: Path
    index: pypi.Index
    debian_files: Verifier

    def source(self, recipe: str, source: SourceChoice) -> Iterator[_Pin]:
        """A source, with the submodules of a commit."""
        match source:
            case GitCommit():
                yield self._commit(recipe, "commit", source)
            case PypiFile(file=file):
                yield from self.files(recipe, [file])
            case Archive(url=url, sha256=digest):
                yield _Pin(recipe, "archive", digest, url, partial(downloads.require_offered, url))
            case LocalTree() | Installed():
                return

    def _commit(self, recipe: str, kind: str, source: GitCommit) -> _Pin:
        def check() -> Iterator[_Pin]:
            repository = server.fetch_trees(source.url, source.commit, self.work)
            submodules = _submodules(repository, source) if source.submodules else ()
            return (self._commit(recipe, "submodule", submodule) for submodule in submodules)

        return _Pin(recipe, kind, source.commit, source.url, check)

    def patch(self, recipe: str, planned: PlannedPatch) -> Iterator[_Pin]:
        """The commits of a patch."""
        kind = ""
        commits: tuple[str, ...] = ()
        match planned.patch:
            case PullPatch(base=base, head=head):
                kind, commits = "pull", (base, head)
            case PickPatch(pick=pick):
                kind, commits = "pick", (pick.after, pick.to)
            case ScriptPatch(script=script):
                kind, commits = "script", (script.commit,)
            case AddPatch(add=add):
                kind, commits = "add", (add.commit,)
        for commit in commits:
            yield self._commit(recipe, kind, GitCommit(planned.url, commit, submodules=False))

    def files(self, recipe: str, files: Iterable[PinnedFile]) -> Iterator[_Pin]:
        """Files of the package index."""
        for file in files:
            check = partial(pypi.require_offered, self.index, file)
            yield _Pin(
                recipe, "file", f"{file.name} {file.version}", f"sha256:{file.sha256}", check
            )

    def debian(self, entry: AnyEntry) -> Iterator[_Pin]:
        """The locked Debian packages of a recipe or of a base, as one pin."""
        lock = lock_of(entry)
        if lock is not None:
            what = f"{len(files_of(lock))} packages of {lock.suite} as of {lock.as_of:%Y-%m-%d}"
            where = str(entry.recipe.debian.lock) if entry.recipe.debian else ""
            yield _Pin(entry.name, "debian", what, where, partial(self.debian_files.check, lock))

    def base(self, entry: Entry[BaseRecipe], targets: Iterable[Architecture]) -> Iterator[_Pin]:
        """The files of a base for these targets, and the image that it starts from."""
        base = entry.recipe
        yield from self.files(base.name, packages_of(entry, targets))
        yield from self.debian(entry)
        published, root = base.published, base.root
        if published is not None:
            name = f"{published.image}@{published.digest}" if published.digest else published.image
            what = published.digest or "not pinned"
            yield _Pin(base.name, "image", what, published.image, partial(_require_image, name))
        if root is not None and root.digest is not None:
            name = f"{root.image}@{root.digest}"
            yield _Pin(base.name, "image", root.digest, root.image, partial(_require_image, name))


def _require_image(reference: str) -> None:
    imagetools.require_image(reference, REGISTRY_PATIENCE)


def _submodules(repository: GitRepository, source: GitCommit) -> Iterator[GitCommit]:
    """The submodules of a commit that ``server.fetch_trees`` fetched."""
    scratch = Scratch(repository.folder.with_suffix(".scratch"))
    scratch.add_objects([repository.folder / "objects"])
    links = [item for item in scratch.items(source.commit) if item.mode == GITLINK]
    if not links:
        return
    blobs = [item.object for item in scratch.items(source.commit, ".gitmodules")]
    server.fetch_blobs(repository, source.url, blobs)
    named = submodule_urls(scratch, source.commit)
    for link in links:
        url = source.moved.get(link.path) or relative_url(named.get(link.path, ""), source.url)
        prefix = f"{link.path}/"
        inner = {
            path.removeprefix(prefix): where
            for path, where in source.moved.items()
            if path.startswith(prefix)
        }
        yield GitCommit(url, link.object, moved=inner)


def mirror(patch_set: PatchSet, entry: Entry[Recipe]) -> Iterator[str]:
    """Mirror everything that a recipe pins, and the history that `patch check` reads.

    Yields a line for each input.  Raises ``FetchError`` where one cannot be fetched.
    """
    repositories = patch_set.repositories
    source = patch_set.source
    if isinstance(source, GitCommit | Archive):
        checkout.tree_of(source, repositories, patch_set.context.work)
    if isinstance(source, GitCommit):
        yield f"{source.url} {source.commit}"
        target = track.upstream_target(source.url, patch_set.track, repositories)
        repositories.walk(source.url, source.commit, target.commit)
        yield f"{source.url} {target.name}: history up to {target.commit}"
    for planned in patch_set.patches:
        if isinstance(planned.patch, ScriptPatch):
            repositories.pin(planned.url, planned.patch.script.commit)
        elif isinstance(planned.patch, AddPatch):
            repositories.pin(planned.url, planned.patch.add.commit)
        else:
            for _ in pieces(patch_set.context, planned, ""):
                pass
        yield f"{planned.name} of {planned.url or 'this repository'}"
    files = packages_of(entry, entry.recipe.targets)
    files += [source.file] if isinstance(source, PypiFile) else []
    pypi.fetch(files, repositories.cache, repositories.log)
    yield from (f"{file.name} {file.version}" for file in files)


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
        for files in _packages(entry.recipe, entry.file.parent, Platforms(target, target)).values():
            found.update(dict.fromkeys(files))
    return [*found]


def _packages(recipe: Recipe | BaseRecipe, folder: Path, platforms: Platforms) -> Packages:
    if isinstance(recipe, BaseRecipe):
        return families.BASES[recipe.family].packages(recipe, folder, platforms)
    return families.ENGINES[recipe.family].packages(recipe, folder, platforms)


def mirror_base(
    entry: Entry[BaseRecipe], targets: Iterable[Architecture], cache: Path, log: Log
) -> Iterator[str]:
    """Mirror the wheels and the published image of a base for these targets; like ``mirror``."""
    base = entry.recipe
    files = packages_of(entry, targets)
    pypi.fetch(files, cache, log)
    yield from (f"{file.name} {file.version}" for file in files)
    published = base.published
    if published is not None and published.digest is not None:
        local = published_image.fetch(base.name, published, published.digest, log).reference
        yield f"{published.image} in Docker, as {local}"
    elif published is not None:
        yield f"{published.image} is not mirrored: it is not pinned ({published.note})"
