"""The GPU code of a recipe's image, and the cards that take it."""

from __future__ import annotations

from typing import Literal

from builder.core.platforms import Platform
from builder.engines.families import ENGINES
from builder.recipes.schema import Recipe
from simulator import selection
from simulator.selection import Capability, Code


def codes_of(recipe: Recipe, platform: Platform | None = None) -> list[str]:
    """The code of a recipe's image for a platform, or of all its images, such as ``sm_120a``.

    Where its family does not know it, as for published images, it is the machine code that the
    recipe names, which its checks look for.
    """
    found: dict[str, None] = {}
    for image in (recipe.on(each) for each in recipe.platform if platform in {each, None}):
        known = ENGINES[recipe.family].machine_code(image)
        named = [f"sm_{arch.partition('-')[0]}" for arch in image.cuda.arch]
        found |= dict.fromkeys(known or named)
    return list(found)


def runs_on(recipe: Recipe, capability: Capability, platform: Platform | None = None) -> bool:
    """Whether a card takes code of a recipe's image, as ``selection.runs`` decides.

    The image for ``platform`` counts; without one, or where the recipe has none for it, any does.
    """
    where = platform if platform in recipe.platform else None
    return any(selection.runs(code_of(name), capability) for name in codes_of(recipe, where))


def no_code(recipe: Recipe, *capabilities: Capability, platform: Platform | None = None) -> str:
    """The lack of code for cards: ``no code for compute capability 8.6, only sm_120a``."""
    known = " and ".join(str(each) if each.major else "unknown" for each in sorted({*capabilities}))
    what = "no code" if ENGINES[recipe.family].machine_code(recipe) else "no code that was checked"
    where = platform if platform in recipe.platform else None
    return f"{what} for compute capability {known}, only {', '.join(codes_of(recipe, where))}"


def code_of(name: str) -> Code:
    """``sm_120a``, and for PTX ``compute_120``, as nvcc names code."""
    prefix, _, arch = name.partition("_")
    digits = arch.rstrip("af")
    suffix: Literal["", "a", "f"] = "a" if arch.endswith("a") else "f" if arch != digits else ""
    return Code("ptx" if prefix == "compute" else "elf", int(digits), suffix)
