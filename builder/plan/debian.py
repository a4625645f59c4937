"""The Debian packages of a plan: from its lock, or the newest ones of the day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from builder.core.errors import RecipeError
from builder.engines.debian import StagePackages
from builder.recipes import locks
from builder.recipes.base import BaseRecipe
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.locks import DebianFile, DebianLock
from builder.recipes.schema import Recipe

AnyEntry = Entry[Recipe] | Entry[BaseRecipe]


@dataclass(frozen=True, slots=True)
class DebianPackages:
    """The Debian packages of all stages; ``as_of`` is the date of their lock, if they have one."""

    installs: tuple[StagePackages, ...] = ()
    as_of: datetime | None = None
    suite: str = ""

    @property
    def files(self) -> tuple[DebianFile, ...]:
        """All locked files, each once."""
        return tuple(dict.fromkeys(file for each in self.installs for file in each.files or ()))

    @property
    def locked(self) -> bool:
        """Whether the versions of all packages are known; also where there are none."""
        return self.as_of is not None or not any(
            each.packages or not each.below for each in self.installs
        )

    @property
    def stages(self) -> Mapping[str, StagePackages]:
        """The stages that install something, for the template."""
        return {
            each.stage: each
            for each in self.installs
            if each.files or (each.files is None and each.packages)
        }

    def inputs(self) -> dict[str, list[list[str]]]:
        """The inputs that decide the locked files, as JSON data; the Dockerfile has the others."""
        return {
            "-".join(filter(None, each.key)): [file.inputs for file in each.files]
            for each in self.installs
            if each.files is not None
        }


def suite_of(catalog: Catalog, base: str | None) -> str | None:
    """The suite of the Debian root below ``base``; None where there is none."""
    recipes = (catalog.base(name).recipe for name in catalog.chain(base))
    return next((str(recipe.root.suite) for recipe in recipes if recipe.root is not None), None)


def lock_file(entry: AnyEntry) -> Path | None:
    """The file of the lock that a recipe or a base names, or None."""
    debian = entry.recipe.debian
    return entry.file.parent / debian.lock if debian is not None and debian.lock else None


def debian_packages(
    entry: AnyEntry, wanted: Sequence[StagePackages], suite: str | None
) -> DebianPackages:
    """The packages of the stages ``wanted``.

    Raises ``RecipeError`` where the recipe names a lock, and it is wrong or was made for others.
    """
    file = lock_file(entry)
    if file is None:
        return DebianPackages(tuple(wanted))
    lock = locks.read(file, entry.name)
    if lock.suite != suite:
        raise _unfit(entry, f"it has packages of {lock.suite}, and the base is {suite}")
    installs = tuple(replace(each, files=locked_files(entry, lock, each)) for each in wanted)
    return DebianPackages(installs, lock.as_of, lock.suite)


def locked_files(
    entry: AnyEntry, lock: DebianLock, wanted: StagePackages
) -> tuple[DebianFile, ...]:
    """The files of a stage in the lock of an entry.

    Raises ``RecipeError`` where the lock lacks the stage, or was made for other packages.
    """
    install = next((each for each in lock.install if each.key == wanted.key), None)
    if install is None:
        cross = f" for {wanted.foreign}" if wanted.foreign else ""
        raise _unfit(entry, f"it has no stage {wanted.stage} on {wanted.architecture}{cross}")
    if tuple(install.packages) != wanted.packages:
        asked = ", ".join(wanted.packages)
        raise _unfit(entry, f"its stage {wanted.stage} was made for other packages than {asked}")
    return tuple(install.files)


def _unfit(entry: AnyEntry, why: str) -> RecipeError:
    return RecipeError(
        f"the Debian lock of {entry.name} does not fit",
        hint=f"`builder pin lock {entry.name}` makes it anew",
        problems=(entry.problem(("debian", "lock"), why),),
    )
