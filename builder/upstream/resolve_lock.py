"""Resolves requirements to the exact wheels of PyPI, for a lock file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.core.errors import RecipeError
from builder.core.log import Log
from builder.recipes import edit, lockfile
from builder.recipes.base import BasePython, BaseRecipe
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import Python, Recipe
from builder.sources import pypi, uv

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


def make(wanted: Lockable, python: str | None, cache: Path, log: Log) -> NewLock:
    """Resolve the requirements to the newest compatible versions.

    Raises ``RecipeError`` where there are none, ``FetchError`` when the index does not answer.
    """
    version = python or wanted.python
    log(f"resolving {', '.join(wanted.requirements)} for CPython {version} on linux x86_64")
    pins = uv.resolve(wanted.requirements, version, cache)
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


def _known(file: Path, log: Log) -> lockfile.Lock | None:
    """The present lock; None where there is none, or, with a line in the log, it is damaged."""
    if not file.exists():
        return None
    try:
        return lockfile.read(file)
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
