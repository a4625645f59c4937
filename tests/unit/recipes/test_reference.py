"""The reference page of all keys is the committed one, and lacks none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from builder.presets.schema import Preset
from builder.recipes.schema import BaseRecipe, Recipe, json_schema
from support.environment import REPOSITORY
from support.reference import pages

DOCS = REPOSITORY / "docs"


def keys(node: Any) -> Iterator[str]:
    """Every key that a schema defines, in any of its models."""
    if isinstance(node, dict):
        yield from node.get("properties", {})
        node = [*node.values()]
    if isinstance(node, list):
        for each in node:
            yield from keys(each)


def test_the_pages_are_the_committed_ones(pytestconfig: pytest.Config) -> None:
    for name, page in pages().items():
        if pytestconfig.getoption("--update-golden"):
            (DOCS / name).write_text(page)
        assert (DOCS / name).read_text() == page, "write it: pytest --update-golden"


@pytest.mark.parametrize(
    ("model", "name"),
    [(Recipe, "recipe-keys.md"), (BaseRecipe, "recipe-keys.md"), (Preset, "preset-keys.md")],
)
def test_the_page_names_every_key_with_its_meaning(model: type[BaseModel], name: str) -> None:
    found = set(keys(json_schema(model)))
    assert len(found) > 20
    page = (DOCS / name).read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    tables = re.findall(r"(?m)^### `\[+(\w+)\]+`$", page)
    assert found <= {*tables, *(row.split("`")[1] for row in rows)}
    assert not [row for row in rows if row.endswith("|  |")]
