"""The entrypoint of engine images: its command line, and the needs of its image.

The program is ``dockerfiles/entrypoint``.  It looks for a card that the engine can use, and then
becomes the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from builder.engines.layout import LAYOUT
from builder.recipes.schema import Recipe

SEPARATOR = "--"
"""Ends the engine's own entrypoint; the container's arguments follow."""
CPU = {"BUILDER_CPU": "1"}
"""Starts the engine without a card."""
NO_CARD = 78
"""Exit status without a usable card: EX_CONFIG of sysexits.h."""

# NVIDIA, CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA
# Minor Version Compatibility"; RTX 50xx needs 570 whatever the toolkit.
OLDEST_DRIVERS = {12: "570", 13: "580"}
"""The oldest driver for each major version of CUDA."""
FIRST_DRIVERS = {12: "570"}
"""The first driver that knows cards of a major compute capability, whatever the image has."""


def command(engine: Sequence[str]) -> list[str]:
    """The ENTRYPOINT of an image; without ``engine``, the base image's follows."""
    return [LAYOUT.entrypoint, *engine, SEPARATOR]


def oldest_driver(recipe: Recipe, cuda: str | None) -> str:
    """The oldest driver of an image with this version of CUDA, "13.0"; empty: not known."""
    return recipe.cuda.driver or OLDEST_DRIVERS.get(int((cuda or "0").partition(".")[0]), "")


def needs(
    recipe: Recipe, code: Sequence[str], cuda: str | None, instructions: Sequence[str] = ()
) -> Iterator[str]:
    """The lines of the file ``needs``; ``cuda`` is the version that the image has: "13.0".

    Without ``code`` every card is taken, without ``instructions`` every CPU; without ``cuda`` the
    variable CUDA_VERSION counts.
    """
    yield f"recipe {recipe.name}"
    yield from (f"code {name}" for name in code)
    yield from (f"cpu {name}" for name in instructions)
    if cuda is not None:
        yield f"cuda {cuda}"
    if driver := oldest_driver(recipe, cuda):
        yield f"driver {driver}"
