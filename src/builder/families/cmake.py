"""Family ``cmake``: a tree with one or more CMakeLists.txt, installed with cmake --install."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.families.compiling import cuda_definitions, definition_arguments
from builder.lock import Locked
from builder.platforms import Platforms
from builder.schema import Recipe

TEMPLATE = "cmake.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ("jobs",)


def check(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """A cmake engine has at least one ``[[cmake]]`` and no ``[python]``."""
    if not recipe.cmake:
        yield ("family",), "the family cmake needs a [[cmake]] table"
    if recipe.python is not None:
        yield ("python",), "the family cmake has no use for [python]"


def packages(
    recipe: Recipe,  # noqa: ARG001
    folder: Path,  # noqa: ARG001
    platforms: Platforms,  # noqa: ARG001
) -> Mapping[str, tuple[Locked, ...]]:
    """Nothing from PyPI beside the source."""
    return {}


def variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
    """The arguments of each cmake invocation: the family's definitions, then the recipe's own."""
    common = cuda_definitions(recipe, platforms)
    invocations = []
    for number, part in enumerate(recipe.cmake, 1):
        source, folder = f"/src/{part.source}", f"/build/{number}"
        targets = ["--target", *part.targets] if part.targets else []
        invocations.append(
            {
                "configure": [
                    *("cmake", "-G", "Ninja", "-S", source, "-B", folder),
                    *definition_arguments(common | dict(part.define)),
                ],
                "build": ["cmake", "--build", folder, *targets],
                "install": ["cmake", "--install", folder, "--prefix", "/opt/engine", "--strip"],
            }
        )
    return {"invocations": invocations}
