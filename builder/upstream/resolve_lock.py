"""Lock files made: requirements become the exact wheels of PyPI that satisfy them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RecipeError
from builder.recipes import lockfile
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import BasePython, BaseRecipe, Python, Recipe
from builder.tools.python import pypi, uv

# https://packages.debian.org/search?keywords=python3&exact=1
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}


@dataclass(frozen=True, slots=True)
class Lockable:
    """What a recipe or a base says of its lock; ``python`` is that of its Debian ("3.13")."""

    name: str
    file: Path
    requirements: tuple[str, ...]
    python: str


@dataclass(frozen=True, slots=True)
class Made:
    """A lock as it would be, and what differs from the one that is there."""

    file: Path
    text: str
    files: tuple[PinnedFile, ...]
    size: int
    """Bytes to download; 0 where the index does not tell."""
    changes: tuple[str, ...]


def lockable(catalog: Catalog, name: str) -> Lockable:
    """What there is to lock of a recipe or of a base.

    Raises ``RecipeError`` where there is nothing.
    """
    entry: Entry[Recipe] | Entry[BaseRecipe]
    entry = catalog.base(name) if name in catalog.bases else catalog.engine(name)
    python: Python | BasePython | None = entry.recipe.python
    if python is None or not python.requirements:
        raise RecipeError(
            f"{entry.name} has nothing to lock",
            hint='say what it needs in the recipe: [python] requirements = ["NAME==VERSION"]',
        )
    version = _python_below(catalog, entry.recipe.base)
    file = entry.file.parent / python.lock
    return Lockable(entry.name, file, tuple(python.requirements), version)


def _python_below(catalog: Catalog, base: str | None) -> str:
    for name in catalog.chain(base):
        recipe = catalog.base(name).recipe
        if recipe is not None and recipe.root is not None and recipe.root.suite in PYTHON_OF:
            return PYTHON_OF[recipe.root.suite]
    raise RecipeError(f"which Python is below {base} is not known", hint="say it: --python 3.13")


def make(wanted: Lockable, python: str | None, cache: Path, log: Callable[[str], None]) -> Made:
    """Resolve the requirements anew: the newest versions that fit together.

    Raises ``RecipeError`` where none do, ``FetchError`` when the index does not answer.
    """
    version = python or wanted.python
    log(f"resolving {', '.join(wanted.requirements)} for CPython {version} on linux x86_64")
    pins = uv.resolve(wanted.requirements, version, cache)
    if not pins:
        raise RecipeError(f"nothing is needed for CPython {version}: there is nothing to lock")
    log(f"looking for the wheels of {len(pins)} packages")
    found = pypi.find_wheels(pins, version)
    files = tuple(PinnedFile(file.name, file.version, file.sha256) for file in found)
    there = _known(wanted.file, log)
    before = {file.name: file for file in there.runtime} if there else {}
    after = {file.name: file for file in files}
    return Made(
        wanted.file,
        _text(wanted, version, there.build if there else (), files),
        files,
        sum(file.size for file in found) if all(file.size for file in found) else 0,
        tuple(_changes(before, after)),
    )


def _known(file: Path, log: Callable[[str], None]) -> lockfile.Lock | None:
    """The lock that is there, if it can be read: else None, and a line says so."""
    if not file.exists():
        return None
    try:
        return lockfile.read(file)
    except RecipeError as error:
        log(f"{error.what}: it is made anew")
        return None


def _changes(before: Mapping[str, PinnedFile], after: Mapping[str, PinnedFile]) -> list[str]:
    lines = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if old is not None and new is not None and old.version == new.version:
            lines.append(f"{name} {new.version}: another file")
        else:
            lines.append(
                f"{name} {old.version if old else 'new'} -> {new.version if new else 'gone'}"
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
