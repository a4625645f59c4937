"""Presets of a farm: found by name, checked against its recipes and cards."""

from __future__ import annotations

import pytest

from builder.errors import RecipeError
from builder.families import load_catalog
from builder.presets import catalog
from builder.presets.catalog import PresetEntry
from support.environment import REPOSITORY

RECIPES = load_catalog(REPOSITORY)
SHIPPED = catalog.load(RECIPES)


@pytest.mark.parametrize("name", SHIPPED.entries)
def test_a_shipped_preset_is_valid(name: str) -> None:
    assert SHIPPED.preset(name).name == name


def test_an_unknown_preset_is_named_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"did you mean gemma-4-e4b-mtp@5090-laptop\?"):
        SHIPPED.preset("gemma-4-e4b-mtp@5090")


def test_presets_are_found_by_their_recipe() -> None:
    found = SHIPPED.of_recipe("beellama-0.1.1")
    assert [entry.name for entry in found] == ["qwen3.6-27b-dflash@5090-laptop"]
    assert all(isinstance(entry, PresetEntry) for entry in found)
