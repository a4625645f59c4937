"""Family ``cmake``: any tree with one or more CMakeLists.txt and install rules."""

from __future__ import annotations

from builder.families.cmake_calls import Command
from builder.families.family import EngineFamily
from builder.families.layout import LAYOUT
from builder.platforms import Platforms
from builder.recipes.schema import Cmake, Recipe


def _install(
    recipe: Recipe,  # noqa: ARG001
    platforms: Platforms,  # noqa: ARG001
    number: int,
    call: Cmake,  # noqa: ARG001
) -> list[Command]:
    return [["cmake", "--install", f"/build/{number}", "--prefix", LAYOUT.engine, "--strip"]]


FAMILY = EngineFamily(
    name="cmake",
    summary="a tree with one or more CMakeLists.txt, installed with cmake --install",
    template="cmake.Dockerfile.j2",
    scripts=("jobs", "reproducible", "used"),
    required_tables={"cmake": "a [[cmake]] table"},
    requires_entrypoint=True,
    install=_install,
)
