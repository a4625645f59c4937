"""The families: how each kind of engine, and each kind of base, is made.

A family is a subclass of ``EngineFamily`` or ``BaseFamily``, listed below, and a Dockerfile
template.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from builder.engines.bases import CudaWheels, DebianRoot, Published, PythonWheels
from builder.engines.cmake import Artifact, CmakeTree
from builder.engines.family import BaseFamily, EngineFamily
from builder.engines.llama_cpp import LlamaCpp
from builder.engines.overlay import FAMILIES
from builder.engines.python import GgmlPython, PythonSdist, TabbyApi
from builder.recipes import catalog
from builder.recipes.catalog import Catalog, CatalogFile
from builder.recipes.probes import Serve
from builder.recipes.schema import BaseRecipe, Recipe

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
        Artifact(),
        CmakeTree(),
        LlamaCpp(),
        GgmlPython(),
        PythonSdist(),
        TabbyApi(),
        *FAMILIES,
    )
}
BASES: dict[str, BaseFamily] = {
    family.name: family for family in (CudaWheels(), DebianRoot(), Published(), PythonWheels())
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
