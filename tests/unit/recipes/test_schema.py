"""The JSON Schemas of all formats: documented keys, patterns with words, no unknown keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from pydantic import BaseModel

from builder.presets.schema import Preset
from builder.recipes.fields import PATTERNS
from builder.recipes.schema import BaseRecipe, Recipe, json_schema

every_model = pytest.mark.parametrize("model", [Recipe, BaseRecipe, Preset])
PLAIN = {
    *("name", "engine", "version", "summary", "license", "family", "base", "package", "source"),
    *("git", "commit", "sha256", "installed", "arguments", "command", "env", "port", "suite"),
    *("repository", "tags", "packages", "check", "why", "file", "option", "python", "run"),
    # Tables: what they hold is documented key by key.
    *("accept", "artifact", "budget", "build", "cmake", "cuda", "debian", "devel", "image"),
    *("layout", "llama", "overlay", "probe", "published", "root", "runtime", "track", "wheel"),
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
