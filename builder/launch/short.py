"""The preset that a short name means on a machine: the best that runs there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder.choose import machine
from builder.choose.known import known
from builder.errors import FitError
from builder.launch.check import AUTO
from builder.launch.described import LaunchRequest
from builder.presets import catalog as presets
from builder.presets import short_names
from builder.recipes.catalog import Catalog
from builder.tools.log import Log


def resolved(
    catalog: Catalog, wanted: LaunchRequest, card: str, state: Path, log: Log
) -> LaunchRequest:
    """The request with the name of a preset, where ``wanted`` has a short name.

    ``card`` is a name of ``cards/``; ``auto``: the cards of this machine.  The context is the one
    that fits.  Raises ``RecipeError`` for an unknown name, ``WorldError`` where this machine has no
    card, ``FitError`` where no such preset runs on it.
    """
    engines = {each.recipe.engine for each in catalog.engines.values() if each.recipe}
    if presets.is_preset(wanted.target) or wanted.target in {*catalog.engines, *engines}:
        return wanted
    entries = short_names.named(presets.load(catalog).valid(), wanted.target)
    root = catalog.root
    here = machine.present(root) if card == AUTO else machine.named(root, [card])
    answer = known(catalog, entries, state).choice(here, wanted.context or 0)
    if not answer.fits:
        why = "\n".join(f"{each.preset}: {'; '.join(each.why)}" for each in answer.excluded)
        hint = "`builder choose` shows what runs on this machine"
        raise FitError(f"no preset of {wanted.target} runs here", why, hint)
    best = answer.fits[0]
    log(f"{wanted.target} is {best.preset} here: `builder choose` shows why")
    own = presets.load(catalog).preset(best.preset).preset.serve.context
    context = best.context if best.context not in {0, own} else None
    return replace(wanted, target=best.preset, context=wanted.context or context)
