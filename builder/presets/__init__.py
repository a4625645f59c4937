"""A model on a card with a recipe: presets, the choice between them, and their servers.

This file has their names: MODEL@CARD, and short: a model, or MODEL:KIND for the presets of one
kind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from builder.core.errors import RecipeError, listed, suggestion

if TYPE_CHECKING:
    from builder.presets.catalog import PresetEntry

MODELS_NAMED = 12  # in an error


def is_preset(name: str) -> bool:
    """Whether a name means a preset, MODEL@CARD; no recipe and no image is named so."""
    return "@" in name and "@sha256:" not in name


def model_names(presets: Mapping[str, str]) -> dict[str, str]:
    """The short name of each preset's model, by the preset's name.

    ``presets`` has the model's full name of each preset.  The short name is the shortest model's
    name that the preset's begins with: "Qwen3.6 27B" and "Qwen3.6 27B AWQ" are ``qwen3.6-27b``.
    A preset with another name is a model of its own.
    """
    known = {re.sub(r"[\s_/]+", "-", model.lower()) for model in presets.values()}
    found = {}
    for preset in presets:
        stem = preset.partition("@")[0]
        fitting = [name for name in known if stem == name or stem.startswith(f"{name}-")]
        if stem:
            found[preset] = min(fitting, key=len, default=stem)
    return found


def all_names(presets: Mapping[str, str]) -> list[str]:
    """All short names, of models and of their kinds; ``presets`` as ``model_names`` takes them."""
    found = model_names(presets)
    kinds = {f"{model}:{_kind(preset, model)}" for preset, model in found.items()}
    return sorted({*found.values(), *(each for each in kinds if not each.endswith(":"))})


def named(
    entries: Sequence[PresetEntry], name: str, recipes: Collection[str] = ()
) -> list[PresetEntry]:
    """The presets that a short name means, on all cards; errors name similar ``recipes``, too."""
    of_model = model_names({entry.name: entry.preset.model.name for entry in entries})
    model, _, kind = name.lower().partition(":")
    found = [entry for entry in entries if of_model[entry.name] == model]
    if not found:
        raise _unknown(name, of_model, recipes)
    if not kind:
        return found
    kinds = {entry.name: _kind(entry.name, model) for entry in found}
    chosen = [entry for entry in found if kinds[entry.name] == kind]
    if not chosen:
        known = ", ".join(f"{model}:{each}" for each in sorted({*kinds.values()} - {""}))
        raise RecipeError(
            f"no preset of {model} is of the kind {kind}",
            f"there are: {known}",
            f"`builder choose --model {model}` shows which of them run here",
        )
    return chosen


def _unknown(name: str, of_model: Mapping[str, str], recipes: Collection[str]) -> RecipeError:
    models = sorted({*of_model.values()})
    near = suggestion(name, [*models, *sorted(of_model), *recipes])
    return RecipeError(
        f"no model, preset or recipe is named {name}{near}",
        f"models with presets: {listed(models, MODELS_NAMED, ', ')}" if models else "",
        "`builder choose` shows what runs on this machine, `builder list` the recipes; with any "
        "other GGUF: `builder run RECIPE --model FILE`",
    )


def _kind(preset: str, model: str) -> str:
    return preset.partition("@")[0].removeprefix(model).strip("-")
