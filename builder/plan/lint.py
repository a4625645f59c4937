"""Check recipes without building: errors, and warnings about parts that no check covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from builder.core.errors import BuilderError, Problem
from builder.engines import families
from builder.engines.families import complete
from builder.plan.resolver import Resolver
from builder.recipes.catalog import Catalog, Entry
from builder.recipes.schema import Recipe

NVCC = "nvidia-cuda-nvcc"


@dataclass(frozen=True, slots=True)
class Checked:
    """One recipe: why it cannot be built (a text of lines), and its warnings."""

    name: str
    error: str
    warnings: tuple[Problem, ...]


def check(
    catalog: Catalog, name: str, miscompiling: Mapping[str, Sequence[str]] | None = None
) -> Checked:
    """Read, plan and render a recipe as a build would, and look for gaps between its probes.

    ``miscompiling`` are warnings about versions of nvcc.  Nothing is fetched.  Raises
    ``RecipeError`` where there is no such recipe.
    """
    name = name if name in catalog.engines else catalog.engine(name).name
    try:
        entry = catalog.engine(name)
        Resolver(catalog, "amd64").plans(name)
    except BuilderError as error:
        return Checked(name, str(error), ())
    wrong = [
        base.problem(("wheel", index, "version"), message)
        for base in map(catalog.base, catalog.chain(entry.recipe.base))
        for index, wheel in enumerate(base.recipe.wheel)
        if wheel.name == NVCC
        for message in (miscompiling or {}).get(wheel.version, ())
    ]
    return Checked(entry.name, "", (*_warnings(entry), *wrong))


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
