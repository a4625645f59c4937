"""The JSON Schemas of all formats: documented keys, patterns with words, no unknown keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from pydantic import BaseModel, ValidationError

from builder.presets.schema import Preset
from builder.recipes.edit import Keys, edited
from builder.recipes.fields import PATTERNS
from builder.recipes.schema import BaseRecipe, Recipe, json_schema

every_model = pytest.mark.parametrize("model", [Recipe, BaseRecipe, Preset])
PLAIN = {
    *("name", "engine", "version", "summary", "license", "family", "base", "package", "source"),
    *("git", "commit", "sha256", "installed", "arguments", "command", "env", "port", "suite"),
    *("repository", "tags", "packages", "check", "why", "file", "option", "python", "run"),
    # Tables: what they hold is documented key by key.
    *("accept", "artifact", "budget", "build", "cmake", "cuda", "debian", "devel", "image"),
    *("ggml", "layout", "llama", "overlay", "probe", "published", "root", "runtime", "track"),
    "wheel",
    *("add", "pick", "script"),
    *("caveat", "container", "memory", "method", "model", "result", "serve"),
}
"""Keys whose name says all."""


@every_model
def test_every_key_is_documented_or_plain(model: type[BaseModel]) -> None:
    schema = json_schema(model)
    undocumented = {
        f"{name}.{key}"
        for name, table in {"": schema, **schema["$defs"]}.items()
        for key, about in table.get("properties", {}).items()
        if not about.get("description") and key not in PLAIN
    }
    assert undocumented == set()


def patterns(schema: object) -> Iterator[str]:
    """Every regular expression of a JSON Schema."""
    if isinstance(schema, dict):
        yield from schema.get("patternProperties", {})
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
    children = schema.values() if isinstance(schema, dict) else schema
    for child in children if isinstance(children, Iterable) else ():
        if isinstance(child, dict | list):
            yield from patterns(child)


@every_model
def test_every_pattern_has_words(model: type[BaseModel]) -> None:
    found = set(patterns(json_schema(model)))
    assert len(found) > 5
    assert found - PATTERNS.keys() == set()


@every_model
def test_no_table_takes_a_key_that_it_does_not_know(
    model: type[BaseModel],
) -> None:
    schema = json_schema(model)
    assert schema["additionalProperties"] is False
    for part in schema["$defs"].values():
        assert part.get("additionalProperties") is False


LLAMA = {
    "engine": "fork",
    "version": "b7",
    "summary": "a fork",
    "license": "MIT",
    "family": "llama-cpp",
    "base": "cuda-13.0",
    "source": {"git": "https://example.org/fork", "commit": "0" * 40},
    "image": {"repository": "fork"},
}


def test_a_recipe_does_not_repeat_what_follows_from_its_other_keys() -> None:
    recipe = Recipe.model_validate(LLAMA)
    assert recipe.url == "https://example.org/fork"
    assert recipe.image.tags == ["b7"]
    assert (recipe.cuda.arch, recipe.cuda.vmm, recipe.build.disk) == (["120"], False, 8.0)
    assert [call.targets for call in recipe.cmake] == [["llama-server", "llama-cli", "llama-bench"]]
    wheels = Recipe.model_validate(LLAMA | {"family": "vllm-overlay"})
    assert (wheels.cuda.vmm, wheels.build.disk, wheels.cmake) == (True, 2.0, [])
    assert Recipe.model_validate(LLAMA | {"family": "cmake"}).build.disk == 10.0


def test_what_a_recipe_gives_wins_over_the_defaults() -> None:
    given = {
        "url": "https://example.org",
        "image": {"repository": "fork", "tags": ["x"]},
        "cuda": {"arch": ["120a"], "vmm": True},
        "build": {"disk": 9.0},
        "cmake": [{"targets": ["llama-server"]}],
    }
    recipe = Recipe.model_validate(LLAMA | given)
    assert recipe.model_dump(include=set(given), exclude_unset=True) == given
    two = Recipe.model_validate(LLAMA | {"cmake": [{"targets": ["a"]}, {}]})
    assert [call.targets for call in two.cmake] == [["a"], []], "two calls: nobody can know"


@pytest.mark.parametrize("part", ["source", "image", "cuda", "build", "cmake", "version", "family"])
def test_a_wrong_table_is_refused_once(part: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate(LLAMA | {part: 7})
    assert {each["loc"][0] for each in caught.value.errors()} == {part}


def test_an_image_for_arm64_alone_names_its_code() -> None:
    arm64 = LLAMA | {"platform": ["linux/arm64"]}
    with pytest.raises(ValidationError, match=r'needs arch in \[cuda\]: \["121"\]'):
        Recipe.model_validate(arm64)
    Recipe.model_validate(arm64 | {"cuda": {"arch": ["121"]}})


def test_an_edit_leaves_a_default_to_follow() -> None:
    text = 'version = "1"\n[image]\nrepository = "a"\n'
    changes: dict[Keys, object] = {("version",): "2", ("image", "tags", 0): "2"}
    assert edited(text, changes) == text.replace("1", "2")
    given = text + 'tags = ["1"]\n'
    assert edited(given, changes) == given.replace("1", "2")
