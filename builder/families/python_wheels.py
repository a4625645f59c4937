"""Base family ``python-wheels``: Python packages out of locked wheels, in a virtual environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.families.compiling import native_lock
from builder.families.standing import foreign, no_variables
from builder.platforms import Platforms
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import BaseRecipe

variables = no_variables
TEMPLATE = "python-wheels.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ()
STANDS_ON: tuple[str, ...] = ("devel", "runtime")
STAGES: Mapping[str, str] = {"runtime": "gzip"}


def check(recipe: BaseRecipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """A base to stand on, and a lock."""
    if recipe.base is None:
        yield ("family",), "the family python-wheels needs a base: a CUDA runtime"
    if recipe.python is None:
        yield ("family",), "the family python-wheels needs a [python] table: lock, requirements"
    yield from foreign(recipe, "python-wheels", "python")


def packages(
    recipe: BaseRecipe, folder: Path, platforms: Platforms
) -> Mapping[str, tuple[PinnedFile, ...]]:
    """The wheels that the lock names."""
    assert recipe.python is not None
    return {"wheels": native_lock(recipe.name, folder / recipe.python.lock, platforms).runtime}
