"""Options of the engine that a user gives after ``--``; options that ``fit`` sets are refused."""

from __future__ import annotations

from collections.abc import Sequence

from builder.presets.command import addresses, groups, option_of, places_by_setting, setting_of
from builder.presets.service import OPTIONS_OF_PLACES
from builder.recipes.schema import Recipe
from builder.servers.server import DRAFT


class OptionError(ValueError):
    """An option of the engine cannot be given after ``--``."""


def require_free(options: Sequence[str], recipe: Recipe, draft: str | None) -> None:
    """Raise ``OptionError`` for an option by which the recipe names a model or the context, or that
    sets the server's address, and for ``{draft}`` without a drafter."""
    for name in addresses(options):
        raise OptionError(f"{name} is set by fit: leave it out after --")
    if draft is None and any(DRAFT in word for word in options):
        raise OptionError(f"{DRAFT} stands for the file of --draft: add --draft, or leave it out")
    set_by = places_by_setting(None, recipe)
    for group in groups(options):
        place = set_by.get(setting_of(group[0], recipe)) if option_of(group[0]) else None
        if place and not any(DRAFT in word for word in group):
            name, ours = group[0].split("=", 1)[0], OPTIONS_OF_PLACES[place]
            raise OptionError(f"{name} is set by the {ours} of fit: leave it out after --")


def given(options: Sequence[str], words: Sequence[str]) -> str:
    """The first of ``options`` that is one of ``words``, under any of its names; empty for none."""
    names = {option_of(word) for word in words} - {""}
    return next((word for word in options if option_of(word) in names), "")
