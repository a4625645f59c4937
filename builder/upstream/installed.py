"""The package of a recipe whose base installs it by a lock."""

from __future__ import annotations

from dataclasses import dataclass

from builder.recipes import lockfile
from builder.recipes.base import BaseRecipe
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import Recipe
from builder.recipes.sources import InstalledSource, PypiSource


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """A Python package as the lock of a base has it; ``python`` is the lock's ("3.13")."""

    base: Entry[BaseRecipe]
    file: PinnedFile
    python: str


def locked_package(recipe: Recipe, catalog: Catalog) -> LockedPackage | None:
    """The installed package that is a recipe's source; None where no base has it in its lock.

    Raises ``RecipeError`` for a lock that cannot be read.
    """
    from packaging.utils import canonicalize_name

    if not isinstance(recipe.source, InstalledSource):
        return None
    wanted = canonicalize_name(recipe.source.installed)
    for name in catalog.chain(recipe.base):
        base = catalog.base(name)
        if base.recipe.python is not None:
            lock = lockfile.read(base.file.parent / base.recipe.python.lock)
            for file in lock.runtime:
                if canonicalize_name(file.name) == wanted:
                    return LockedPackage(base, file, lock.python)
    return None


def release_of(recipe: Recipe, catalog: Catalog) -> PinnedFile | None:
    """The release of PyPI that a recipe pins: its source, or the package in its base's lock.

    None where it pins none.  Raises ``RecipeError`` for a lock that cannot be read.
    """
    source = recipe.source
    if isinstance(source, PypiSource):
        return PinnedFile(source.pypi, source.version, source.sha256)
    found = locked_package(recipe, catalog)
    return found.file if found else None
