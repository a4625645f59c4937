"""Check: the recipe's cards have a path through the device code of every library.

All layers count, whoever built the library: a published image and wheels as much as the engine.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from builder.contents.contents import Contents
from builder.kernels.paths import CodePaths, paths, text_of
from builder.kernels.selection import Capability
from builder.recipes.schema import Recipe
from builder.smoke.context import Context
from builder.smoke.verdict import Check
from builder.tools import sizes

ARCHITECTURES = ("120",)  # of an image without a recipe
WHEELS = "/site-packages/"  # the diet changes no other libraries; some of CUDA's have zeros, too


def cards(recipe: Recipe | None) -> list[Capability]:
    """The cards that an image is for, by its recipe's architectures."""
    wanted = recipe.cuda.arch if recipe else ARCHITECTURES
    return list(dict.fromkeys(map(Capability.of_arch, wanted)))


def table(contents: Contents, recipe: Recipe | None) -> tuple[CodePaths, ...]:
    """The device code of every library for every card, the largest library first."""
    found = [
        paths(file.path, parsed.modules, card, parsed.zeros if WHEELS in file.path else 0)
        for card in cards(recipe)
        for file, parsed in contents.elves()
        if parsed.modules and not file.shares
    ]
    return tuple(sorted(found, key=lambda each: (-each.whole, each.path)))


def check(context: Context) -> Iterator[Check]:
    """No library is without code for a card, and the driver compiles nothing at the first use.

    ``context.code`` gets the table.
    """
    context.code = found = table(context.contents, context.subject.recipe)
    for card in cards(context.subject.recipe):
        on_card = [each for each in found if each.card == str(card)]
        without = [
            (each.path, f"{each.path}: none of {sizes.shown(each.dead)} runs")
            for each in on_card
            if each.pathless
        ]
        late = [
            (each.path, f"{each.path}: {sizes.shown(each.compiled)} of PTX")
            for each in on_card
            if each.compiled
        ]
        fine = _fine(on_card)
        subject = f"every library has code for {card}"
        expected = "machine code or PTX in each"
        yield context.rules.check("code paths", subject, expected, without, fine)
        subject = f"the driver compiles nothing for {card}"
        expected = "machine code in every module that the card uses"
        yield context.rules.check("code paths", subject, expected, late, fine)


def _fine(found: Sequence[CodePaths]) -> str:
    names = ", ".join(posixpath.basename(each.path) for each in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{text_of(found)}: {names}{more}" if found else "no library has device code"
