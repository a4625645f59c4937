"""The families: how each kind of engine, and each kind of base, is made.

A family is an ``EngineFamily`` or ``BaseFamily`` value, listed below, and a Dockerfile template.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from builder.families import (
    artifact,
    cmake,
    cuda_wheels,
    debian_root,
    ggml_python,
    llama_cpp,
    overlay,
    published,
    python_sdist,
    python_wheels,
    tabbyapi,
)
from builder.families.family import BaseFamily, EngineFamily
from builder.recipes import catalog
from builder.recipes.catalog import Catalog, CatalogFile
from builder.recipes.schema import BaseRecipe, Recipe, Serve

__all__ = [
    "BASES",
    "ENGINES",
    "BaseFamily",
    "EngineFamily",
    "bases_of",
    "complete",
    "load_catalog",
    "serve_of",
]

ENGINES: dict[str, EngineFamily] = {
    family.name: family
    for family in (
        artifact.FAMILY,
        cmake.FAMILY,
        llama_cpp.FAMILY,
        ggml_python.FAMILY,
        python_sdist.FAMILY,
        tabbyapi.FAMILY,
        *overlay.FAMILIES,
    )
}

BASES: dict[str, BaseFamily] = {
    family.name: family
    for family in (
        cuda_wheels.FAMILY,
        debian_root.FAMILY,
        published.FAMILY,
        python_wheels.FAMILY,
    )
}


def bases_of(catalog: Catalog, recipe: Recipe | BaseRecipe) -> list[str]:
    """The bases below a recipe or a base, and the bases in which its entrypoint is compiled."""
    tools = None if isinstance(recipe, BaseRecipe) else ENGINES[recipe.family].tools
    return list(dict.fromkeys([*catalog.chain(recipe.base), *catalog.chain(tools)]))


def complete(recipe: Recipe) -> Recipe:
    """A recipe with the defaults of its family."""
    return ENGINES[recipe.family].complete(recipe)


def serve_of(recipe: Recipe) -> Serve | None:
    """How the server of a recipe is started, also where the smoke test does not; None: unknown."""
    return complete(recipe).serve or ENGINES[recipe.family].serve


def load_catalog(
    root: Path, new: CatalogFile | None = None, only: Collection[str] | None = None
) -> Catalog:
    """The recipes and bases of the farm at ``root``, checked by their families.

    ``new`` is a recipe that has not been written; ``only`` are the recipes and engines to read.

    Raises ``RecipeError`` if it holds no recipes.
    """
    engines = {name: family.check for name, family in ENGINES.items()}
    bases = {name: family.check for name, family in BASES.items()}
    return catalog.load(root, engines, bases, new, only)
