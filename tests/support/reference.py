"""The reference pages of all keys of recipes and presets, written from their JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from builder.presets.schema import Preset
from builder.recipes.schema import BaseRecipe, Recipe, json_schema

Schema = Mapping[str, Any]
Cells = tuple[str, str, str, str]
"""A key: name, value, default, meaning."""
TYPES = {"boolean": "true or false", "integer": "integer", "number": "number", "string": "text"}
BAR = "\\|"
RECIPES = """\
# Recipe keys

*Generated from `builder/recipes/` by `pytest tests/unit/recipes/test_reference.py
--update-golden`: edit the descriptions there.* All keys of a recipe, and below them all keys of a
base. See [Recipes](recipes.md) for examples.
"""
PRESETS = """\
# Preset keys

*Generated from `builder/presets/schema.py` by `pytest tests/unit/recipes/test_reference.py
--update-golden`: edit the descriptions there.* All keys of a preset. See [Presets](presets.md) for
how to write one.
"""


def pages() -> dict[str, str]:
    """The pages of docs/, in Markdown."""
    bases = ["## Bases\n", "A base is a file of `recipes/bases/`.\n", keys_of(BaseRecipe)]
    return {
        "recipe-keys.md": "\n".join([RECIPES, "## Recipes\n", keys_of(Recipe), *bases]),
        "preset-keys.md": "\n".join([PRESETS, "## Presets\n", keys_of(Preset)]),
    }


def keys_of(model: type[BaseModel]) -> str:
    """All keys of a format, table by table, in Markdown."""
    return "\n".join(_document(json_schema(model)))


def _document(schema: Schema) -> Iterator[str]:
    """The keys at the top of a file, then each of its tables."""
    tables = {
        key: _tables(value, schema)
        for key, value in schema["properties"].items()
        if _tables(value, schema)
    }
    plain = {key: value for key, value in schema["properties"].items() if key not in tables}
    yield _rows(_cells(plain, schema, schema))
    written: dict[tuple[str, ...], tuple[str, list[Cells]]] = {}
    for key, found in tables.items():
        several = schema["properties"][key].get("type") == "array"
        title = f"[[{key}]]" if several else f"[{key}]"
        yield f"### `{title}`\n"
        yield from _table(key, title, found, schema, written)


def _table(
    key: str,
    title: str,
    found: Sequence[Schema],
    schema: Schema,
    written: dict[tuple[str, ...], tuple[str, list[Cells]]],
) -> Iterator[str]:
    """A table of a recipe; where it has several kinds, the keys of all kinds come first.

    A table with the keys of one that is ``written`` names that one.
    """
    first, *others = found
    common = {
        name: value
        for name, value in first["properties"].items()
        if all(other["properties"].get(name) == value for other in others)
    }
    cells = _cells(common, first, schema)
    same = tuple(cell for key, kind, _, meaning in cells for cell in (key, kind, meaning))
    if not others:
        yield f"{_text(first)}\n"
    if not others and same in written:
        yield _as_in(*written[same], cells)
        return
    if not others:
        written[same] = (title, cells)
    if common:
        yield _rows(cells)
    if others:
        yield (
            "Besides, the keys of exactly one of these:\n" if common else "Exactly one of these:\n"
        )
    for kind in others and found:
        own = {name: each for name, each in kind["properties"].items() if name not in common}
        yield f"{_text(kind)}\n"
        yield _rows(_cells(own, kind, schema))
    for kind in found:
        for name, value in kind["properties"].items():
            inner = _tables(value, schema)
            if len(inner) == 1:
                yield f"#### `{key}.{name}`\n"
                yield from _table(f"{key}.{name}", f"{key}.{name}", inner, schema, written)


def _as_in(title: str, there: Sequence[Cells], here: Sequence[Cells]) -> str:
    """The reference to a table with the same keys, and which of them are required only there."""
    other = [
        f"; {key} is {default or 'optional'} here"
        for (key, _, before, _), (_, _, default, _) in zip(there, here, strict=True)
        if default != before
    ]
    return f"The keys are as in `{title}`{''.join(other)}.\n"


def _cells(properties: Schema, owner: Schema, schema: Schema) -> list[Cells]:
    """The cells of each key: name, value, default, meaning."""
    return [
        (
            f"`{key}`",
            _type(value, schema),
            "required" if key in owner.get("required", ()) else _default(value),
            _text(value) or _inner(value, schema),
        )
        for key, value in properties.items()
    ]


def _rows(found: Sequence[Cells]) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    rows += [f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |" for cells in found]
    return "\n".join([*rows, ""])


def _tables(value: Schema, schema: Schema) -> list[Schema]:
    """The models that a value may be, or a list of such; none for any other value."""
    if "$ref" in value:
        return [schema["$defs"][value["$ref"].rpartition("/")[2]]]
    options = value.get("oneOf") or value.get("anyOf") or [value.get("items", {})]
    return [each for option in options if option for each in _tables(option, schema)]


def _type(value: Schema, schema: Schema) -> str:
    if _tables(value, schema):
        return "tables" if value.get("type") == "array" else "table"
    options = value.get("anyOf") or value.get("oneOf")
    if options:
        return ", ".join(_type(each, schema) for each in options if each.get("type") != "null")
    if "enum" in value:
        return ", ".join(f"`{json.dumps(each)}`" for each in value["enum"])
    if value["type"] == "array":
        return f"list of {_type(value['items'], schema)}"
    if value["type"] == "object":
        return "table by name"
    least, most = value.get("minimum"), value.get("maximum")
    limits = [f"from {least}"] if least is not None else []
    limits += [f"above {value['exclusiveMinimum']}"] if "exclusiveMinimum" in value else []
    limits += [f"to {most}"] if most is not None else []
    return " ".join([TYPES[value["type"]], *limits])


def _default(value: Schema) -> str:
    default = value.get("default")
    return (
        "" if default in (None, [], {}) or isinstance(default, dict) else f"`{json.dumps(default)}`"
    )


def _text(value: Schema) -> str:
    text = " ".join(str(value.get("description", "")).split())
    return text.replace("``", "`")


def _inner(value: Schema, schema: Schema) -> str:
    """The description of the table that a key is."""
    return " ".join(_text(each) for each in _tables(value, schema)[:1])
