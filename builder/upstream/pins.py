"""The pinned inputs of recipes and bases, mirrored on this machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from builder.build import roots
from builder.core.log import Log
from builder.core.platforms import Architecture, Platforms, architecture
from builder.core.settings import Settings
from builder.engines import families
from builder.engines.family import Packages
from builder.plan.debian import AnyEntry, lock_file
from builder.plan.inputs import GitCommit, PypiFile
from builder.recipes import locks
from builder.recipes.base import BaseRecipe
from builder.recipes.catalog import Entry
from builder.recipes.lockfile import PinnedFile
from builder.recipes.patches import AddPatch, ScriptPatch
from builder.recipes.schema import Recipe
from builder.sources import apt, checkout, pypi
from builder.sources.patches import pieces
from builder.upstream import track
from builder.upstream.locks import wanted_on
from builder.upstream.patches import PatchSet


def mirror(patch_set: PatchSet, entry: Entry[Recipe], settings: Settings) -> Iterator[str]:
    """Mirror the pinned inputs of a recipe, and the history that `patch check` reads.

    Yields a line for each input.  Raises ``FetchError`` where one cannot be fetched.
    """
    repositories = patch_set.repositories
    source = patch_set.source
    if isinstance(source, GitCommit):
        checkout.tree_of(source, repositories, patch_set.context.work)
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
        for files in _packages(entry.recipe, entry.file.parent, Platforms(target, target)).values():
            found.update(dict.fromkeys(files))
    return [*found]


def _packages(recipe: Recipe | BaseRecipe, folder: Path, platforms: Platforms) -> Packages:
    if isinstance(recipe, BaseRecipe):
        return families.BASES[recipe.family].packages(recipe, folder, platforms)
    return families.ENGINES[recipe.family].packages(recipe, folder, platforms)


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
