"""A family is a class: its defaults, its tables, and what a recipe may not set."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from builder.core.errors import RecipeError
from builder.core.platforms import Platforms
from builder.engines.families import BASES, ENGINES
from builder.engines.family import BaseFamily, EngineFamily
from builder.recipes.schema import Recipe
from support.catalogs import load
from support.environment import REPOSITORY

AMD64 = Platforms("amd64")


def recipe_of(name: str) -> Recipe:
    return load(REPOSITORY).engine(name).recipe


def test_a_family_without_tables_refuses_each_that_a_recipe_has() -> None:
    plain = EngineFamily()
    plain.name = "plain"
    recipe = recipe_of("lucebox-f12a87c")
    messages = {message for _, message in plain.check(recipe)}
    for table in ("[[cmake]]", "[python]", "[layout]"):
        assert f"the family plain has no use for {table}" in messages
    assert plain.complete(recipe) is recipe
    assert plain.packages(recipe, Path(), AMD64) == {}


def test_later_layers_win_and_name_their_origin() -> None:
    recipe = recipe_of("beellama-0.1.1")
    (layers,) = ENGINES["llama-cpp"].layers(recipe, AMD64)
    origins = [layer.origin for layer in layers]
    assert origins == ["builder", f"base {recipe.base}", "family llama-cpp", "recipe"]


def test_an_unchecked_recipe_is_an_error_of_the_recipe() -> None:
    recipe = recipe_of("hello-sm120-0.1.0")
    with pytest.raises(RecipeError, match="lacks a table that the family cmake needs"):
        ENGINES["python-sdist"].packages(recipe, Path(), AMD64)


MODULES = [file.stem for file in sorted((REPOSITORY / "builder/engines").glob("*.py"))]
FAMILIES = [*ENGINES.values(), *BASES.values()]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_has_its_template_and_scripts(family: EngineFamily | BaseFamily) -> None:
    for file in (family.template, *(f"scripts/{name}" for name in family.scripts)):
        assert (REPOSITORY / "dockerfiles" / file).is_file(), f"dockerfiles/{file} is missing"


@pytest.mark.parametrize("module", MODULES)
def test_every_module_of_a_family_is_listed(module: str) -> None:
    for kind in vars(import_module(f"builder.engines.{module}")).values():
        if isinstance(kind, type) and issubclass(kind, EngineFamily | BaseFamily):
            listed = "name" not in vars(kind) or any(type(each) is kind for each in FAMILIES)
            assert listed, f"builder/engines/families.py does not list {kind.__name__}()"


@pytest.mark.parametrize("name", ENGINES)
def test_every_family_of_engines_has_a_recipe(name: str) -> None:
    recipes = load(REPOSITORY).engines.values()
    used = any(entry.recipe is not None and entry.recipe.family == name for entry in recipes)
    assert used, f"recipes/ has no ENGINE-VERSION.toml of the family {name}"


@pytest.mark.parametrize("name", ENGINES)
def test_every_family_of_engines_has_a_row_in_the_docs(name: str) -> None:
    page = (REPOSITORY / "docs/recipes.md").read_text()
    assert f"\n| `{name}` |" in page, f"docs/recipes.md needs a row for {name} in its families"


def test_a_recipe_needs_a_probe_where_its_family_has_none() -> None:
    for name in ("beellama-0.1.1", "hello-sm120-0.1.0"):
        recipe = recipe_of(name).model_copy(update={"probe": []})
        family = ENGINES[recipe.family]
        found = [(path, message) for path, message in family.check(recipe) if path == ("probe",)]
        assert bool(family.complete(recipe).probe) is not bool(found)
        assert all("""run = ["PROGRAM", "--version"]""" in message for _, message in found)


@pytest.mark.parametrize(
    ("name", "image", "message"),
    [
        ("llama-cpp-b10018", {"env": {"LLAMA_ARG_PORT": "9000"}}, "LLAMA_ARG_PORT is 9000, and"),
        ("llama-cpp-b10018", {"env": {"LLAMA_ARG_PORT": "9000"}, "port": 9000}, ""),
        ("llama-cpp-b10018", {"command": ["--port", "9000"]}, "--port is 9000, and the image's"),
        ("llama-cpp-b10018", {"command": ["--port=9000"]}, "port is 8080"),
        ("llama-cpp-b10018", {"env": {"LLAMA_ARG_HOST": "127.0.0.1"}}, "use 0.0.0.0"),
        ("llama-cpp-b10018", {"env": {"LLAMA_ARG_HOST": "::"}}, ""),
        ("llama-cpp-python-0.3.36", {"env": {"HOST": "localhost"}}, "HOST is localhost"),
        ("sglang-0.5.23-wheel", {"command": ["--host", "::1"]}, "--host is ::1"),
        ("lmdeploy-0.18.0-wheel", {"command": ["--server-port", "1"]}, "port is 23333"),
    ],
)
def test_a_recipe_whose_server_is_not_on_the_images_port(
    name: str, image: dict[str, object], message: str
) -> None:
    """The smoke test asks over the container's loopback: it would not see a wrong host."""
    recipe = recipe_of(name)
    changed = recipe.image.model_validate(recipe.image.model_dump() | image)
    family = ENGINES[recipe.family]
    found = [
        text
        for path, text in family.check(recipe.model_copy(update={"image": changed}))
        if path[0] == "image"
    ]
    assert len(found) == bool(message)
    assert message in "".join(found)
