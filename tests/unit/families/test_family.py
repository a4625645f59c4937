"""A family is a value: its defaults, its tables, and what a recipe may not set."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import RecipeError
from builder.families import BASES, ENGINES
from builder.families.family import EngineFamily
from builder.platforms import Platforms
from builder.recipes.schema import Recipe
from support.catalogs import load
from support.environment import REPOSITORY

AMD64 = Platforms("amd64")


def recipe_of(name: str) -> Recipe:
    return load(REPOSITORY).engine(name).recipe


def test_a_family_without_tables_refuses_each_that_a_recipe_has() -> None:
    plain = EngineFamily(name="plain", summary="x", template="x.j2")
    recipe = recipe_of("lucebox-f12a87c")
    messages = {message for _, message in plain.check(recipe)}
    for table in ("[[cmake]]", "[python]", "[layout]"):
        assert f"the family plain has no use for {table}" in messages
    assert plain.complete(recipe) is recipe
    assert plain.packages(recipe, Path(), AMD64) == {}
    assert plain.template_variables(recipe, AMD64) == {}


def test_later_layers_win_and_name_their_origin() -> None:
    recipe = recipe_of("beellama-0.1.1")
    (layers,) = ENGINES["llama-cpp"].layers(recipe, AMD64)
    origins = [layer.origin for layer in layers]
    assert origins == ["builder", f"base {recipe.base}", "family llama-cpp", "recipe"]


def test_an_unchecked_recipe_is_an_error_of_the_recipe() -> None:
    recipe = recipe_of("hello-sm120-0.1.0")
    with pytest.raises(RecipeError, match="lacks a table that the family cmake needs"):
        ENGINES["python-sdist"].packages(recipe, Path(), AMD64)


def test_every_family_has_its_template_and_scripts() -> None:
    templates = REPOSITORY / "dockerfiles"
    for family in (*ENGINES.values(), *BASES.values()):
        assert (templates / family.template).is_file()
        assert all((templates / "scripts" / name).is_file() for name in family.scripts)
