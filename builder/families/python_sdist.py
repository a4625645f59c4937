"""Family ``python-sdist``: a Python package with CUDA parts, built by its own PEP 517 backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.families.compiling import (
    Layer,
    common_layers,
    definition_value,
    merged,
    native_lock,
    no_scope,
    unused,
)
from builder.platforms import Platforms
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import PypiSource, Recipe

TEMPLATE = "python-sdist.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ("jobs", "relink.py")
STANDS_ON: tuple[str, ...] = ("devel", "runtime")
NO_VMM: str | None = None
INHERITS = False
scope = no_scope


def check(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """An sdist from PyPI, a ``[python]`` table and no ``[[cmake]]``."""
    if recipe.python is None:
        yield ("family",), "the family python-sdist needs a [python] table"
    yield from unused(recipe, "python-sdist", "python")
    if not isinstance(recipe.source, PypiSource):
        yield ("source",), "the family python-sdist takes its source from PyPI: pypi = NAME"
    if not recipe.image.entrypoint:
        yield ("image",), "the family python-sdist needs an entrypoint"


def complete(recipe: Recipe) -> Recipe:
    """Nothing is known of an engine just because it is a Python package."""
    return recipe


def packages(
    recipe: Recipe, folder: Path, platforms: Platforms
) -> Mapping[str, tuple[PinnedFile, ...]]:
    """The wheels that the lock names for the build and for the runtime."""
    assert recipe.python is not None
    locked = native_lock(recipe.name, folder / recipe.python.lock, platforms)
    return {"build-wheels": locked.build, "runtime-wheels": locked.runtime}


def definitions(recipe: Recipe, platforms: Platforms) -> Sequence[Sequence[Layer]]:
    """What every CUDA engine needs, then the recipe's own."""
    assert recipe.python is not None
    common = common_layers(recipe, platforms)
    return [[*common, Layer("recipe", recipe.python.define)]]


def variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
    """Config settings for the backend: cmake's definitions, then the recipe's own."""
    assert recipe.python is not None
    (layers,) = definitions(recipe, platforms)
    settings = {f"cmake.define.{name}": value for name, value in merged(layers).items()}
    settings |= dict(recipe.python.config)
    arguments: list[str] = []
    for name, value in settings.items():
        arguments += ["--config-settings", f"{name}={definition_value(value)}"]
    return {"settings": arguments}
