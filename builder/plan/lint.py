"""Check recipes without building: errors, and warnings about parts that no check covers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builder import families
from builder.compilers import table as compilers
from builder.errors import BuilderError, Problem
from builder.families import complete
from builder.plan.resolver import Resolver
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import BaseRecipe, Recipe

NVCC = "nvidia-cuda-nvcc"


@dataclass(frozen=True, slots=True)
class Checked:
    """One recipe: why it cannot be built (a text of lines), and its warnings."""

    name: str
    error: str
    warnings: tuple[Problem, ...]


def check(catalog: Catalog, name: str) -> Checked:
    """Read, plan and render a recipe as a build would, and look for gaps between its probes.

    Nothing is fetched.  Raises ``RecipeError`` where there is no such recipe.
    """
    name = name if name in catalog.engines else catalog.engine(name).name
    try:
        entry = catalog.engine(name)
        Resolver(catalog, "amd64").plans(name)
        bases = [catalog.base(base) for base in catalog.chain(entry.recipe.base)]
        wrong = [warning for base in bases for warning in _miscompiling(base, catalog)]
    except BuilderError as error:
        return Checked(name, str(error), ())
    return Checked(entry.name, "", (*_warnings(entry), *wrong))


def _miscompiling(base: Entry[BaseRecipe], catalog: Catalog) -> Iterator[Problem]:
    """A base whose nvcc gives wrong kernels in a table of ``compilers/``.

    Raises ``RecipeError`` where a table is invalid.
    """
    for index, wheel in enumerate(base.recipe.wheel):
        if wheel.name != NVCC:
            continue
        for table in compilers.load(catalog.root):
            for each in table.compiler:
                if each.nvcc == wheel.version and each.wrong:
                    threads = compilers.about(compilers.threads(catalog.root), each)
                    named = ", ".join(thread.thread for thread in threads)
                    message = (
                        f"nvcc {each.nvcc} miscompiles {', '.join(each.wrong)} of {table.recipe}"
                        f"{f': {named}' if named else ''}"
                    )
                    yield base.problem(("wheel", index, "version"), message)


def _warnings(entry: Entry[Recipe]) -> Iterator[Problem]:
    for index, patch in enumerate(entry.recipe.patch):
        if patch.probe is None:
            message = f"{patch.name} has no probe: nothing checks it in the finished image"
            yield entry.problem(("patch", index), message)
    recipe = complete(entry.recipe)
    started = families.ENGINES[recipe.family].server_of(recipe) is not None
    if recipe.image.port is not None and not started:
        message = "no [serve]: the server is never started before it is published"
        yield entry.problem(("image", "port"), message)
