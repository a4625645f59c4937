"""Base family ``debian-root``: the Debian system that everything else stands on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.families.standing import foreign
from builder.lock import Locked
from builder.platforms import Platforms
from builder.schema import BaseRecipe

TEMPLATE = "debian-root.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ()
STANDS_ON: tuple[str, ...] = ()
STAGES: Mapping[str, str] = {"root": "gzip"}


def check(recipe: BaseRecipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """A root has a ``[root]`` table and stands on nothing."""
    if recipe.root is None:
        yield ("family",), "the family debian-root needs a [root] table"
    if recipe.base is not None:
        yield ("base",), "a debian-root has no base"
    yield from foreign(recipe, "debian-root", "root")


def packages(
    recipe: BaseRecipe,  # noqa: ARG001
    folder: Path,  # noqa: ARG001
    platforms: Platforms,  # noqa: ARG001
) -> Mapping[str, tuple[Locked, ...]]:
    """Nothing from PyPI."""
    return {}


def variables(
    recipe: BaseRecipe,  # noqa: ARG001
    platforms: Platforms,  # noqa: ARG001
) -> Mapping[str, Any]:
    """Nothing beside the recipe."""
    return {}
