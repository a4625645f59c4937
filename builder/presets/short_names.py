"""Short names: ``qwen3.6-27b`` is a model, ``qwen3.6-27b:dflash`` its presets of one kind."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from builder.errors import RecipeError
from builder.presets.catalog import PresetEntry
from builder.recipes.parse import suggestion


def models(entries: Sequence[PresetEntry]) -> dict[str, str]:
    """The short name of each preset's model, by the preset's name.

    It is the shortest model's name that the preset's begins with: "Qwen3.6 27B" and "Qwen3.6 27B
    AWQ" are ``qwen3.6-27b``.  A preset with another name is a model of its own.
    """
    names = sorted({_slug(entry.preset.model.name) for entry in entries}, key=len)
    return {
        entry.name: next((name for name in names if _begins(_stem(entry.name), name)), stem)
        for entry in entries
        if (stem := _stem(entry.name))
    }


def named(entries: Sequence[PresetEntry], name: str) -> list[PresetEntry]:
    """The presets that a short name means, on all cards.

    Raises ``RecipeError`` where there is none.
    """
    of_model = models(entries)
    model, _, kind = name.lower().partition(":")
    found = [entry for entry in entries if of_model[entry.name] == model]
    if not found:
        raise _unknown(name, of_model)
    if not kind:
        return found
    kinds = {entry.name: _stem(entry.name).removeprefix(model).strip("-") for entry in found}
    chosen = [entry for entry in found if kinds[entry.name] == kind]
    if not chosen:
        known = ", ".join(f"{model}:{each}" for each in sorted({*kinds.values()} - {""}))
        raise RecipeError(f"no preset of {model} is of the kind {kind}", f"there are: {known}")
    return chosen


def _unknown(name: str, of_model: Mapping[str, str]) -> RecipeError:
    known = sorted({*of_model.values()})
    return RecipeError(
        f"no preset, no model and no recipe is named {name}{suggestion(name, known)}",
        f"the models: {', '.join(known)}" if known else "",
        "`builder choose` shows the presets that run on this machine, `builder list` the recipes",
    )


def _stem(preset: str) -> str:
    return preset.partition("@")[0]


def _slug(name: str) -> str:
    return re.sub(r"[\s_/]+", "-", name.lower())


def _begins(stem: str, name: str) -> bool:
    return stem == name or stem.startswith(f"{name}-")
