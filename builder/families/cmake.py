"""Family ``cmake``: a tree with one or more CMakeLists.txt, installed with cmake --install."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.families.compiling import (
    Layer,
    common_layers,
    invocations,
    no_packages,
    no_scope,
    unused,
)
from builder.platforms import Platforms
from builder.recipes.schema import Cmake, Recipe

packages = no_packages
TEMPLATE = "cmake.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ("jobs",)
STANDS_ON: tuple[str, ...] = ("devel", "runtime")
NO_VMM: str | None = None
INHERITS = False
scope = no_scope


def check(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """A cmake engine has at least one ``[[cmake]]`` and no ``[python]``."""
    if not recipe.cmake:
        yield ("family",), "the family cmake needs a [[cmake]] table"
    yield from unused(recipe, "cmake", "cmake")
    if not recipe.image.entrypoint:
        yield ("image",), "the family cmake needs an entrypoint"


def complete(recipe: Recipe) -> Recipe:
    """Nothing is known of an engine just because cmake builds it."""
    return recipe


def definitions(recipe: Recipe, platforms: Platforms) -> Sequence[Sequence[Layer]]:
    """What every CUDA engine needs, then the recipe's own."""
    common = common_layers(recipe, platforms)
    return [[*common, Layer("recipe", part.define)] for part in recipe.cmake]


def variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
    """The arguments of each cmake invocation."""

    def install(number: int, part: Cmake) -> list[str]:  # noqa: ARG001
        folder = f"/build/{number}"
        return ["cmake", "--install", folder, "--prefix", "/opt/engine", "--strip"]

    return {"invocations": invocations(recipe, definitions(recipe, platforms), install)}
