"""Base family ``published``: an image that somebody else publishes, taken by its digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.families.standing import foreign
from builder.lock import Locked
from builder.platforms import Platforms
from builder.schema import BaseRecipe, Stage

TEMPLATE = "published.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ()
STANDS_ON: tuple[str, ...] = ()
STAGES: Mapping[str, str] = {"runtime": "gzip"}


def check(recipe: BaseRecipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """A published image names itself and stands on nothing."""
    if recipe.published is None:
        yield ("family",), "the family published needs a [published] table: image"
    if recipe.base is not None:
        yield ("base",), "a published image has no base"
    if recipe.devel != Stage() or recipe.runtime != Stage():
        yield ("family",), "a published image is taken as it is: no [devel], no [runtime]"
    yield from foreign(recipe, "published", "published")


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
