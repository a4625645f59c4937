"""Base family ``published``: an image that somebody else publishes, taken by its digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from builder.families.standing import foreign, no_packages, no_variables
from builder.recipes.schema import BaseRecipe, Stage

packages = no_packages
variables = no_variables
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
