"""Base family ``debian-root``: the Debian system that everything else stands on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from builder.families.standing import foreign, no_packages, no_variables
from builder.recipes.schema import BaseRecipe

packages = no_packages
variables = no_variables
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
