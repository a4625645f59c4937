"""What the families of bases share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.platforms import Platforms
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import BaseRecipe

TABLES = {
    "root": "[root]",
    "wheel": "[[wheel]]",
    "published": "[published]",
    "python": "[python]",
}
"""Parts of a base that only some families know."""


def foreign(
    recipe: BaseRecipe, family: str, *known: str
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The tables of a base that its family, which knows those named, would pass over."""
    for name, table in TABLES.items():
        if name not in known and getattr(recipe, name):
            yield (name,), f"the family {family} has no use for {table}"


def no_packages(
    recipe: BaseRecipe,  # noqa: ARG001
    folder: Path,  # noqa: ARG001
    platforms: Platforms,  # noqa: ARG001
) -> Mapping[str, tuple[PinnedFile, ...]]:
    """``packages`` of a family that takes nothing from PyPI."""
    return {}


def no_variables(
    recipe: BaseRecipe,  # noqa: ARG001
    platforms: Platforms,  # noqa: ARG001
) -> Mapping[str, Any]:
    """``variables`` of a family whose template sees nothing beside the recipe."""
    return {}
