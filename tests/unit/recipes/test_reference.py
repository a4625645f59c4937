"""The reference page of all keys is the committed one, and lacks none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from builder.recipes.schema import json_schema
from builder.recipes.schema.reference import reference
from support.environment import REPOSITORY

PAGE = REPOSITORY / "docs" / "recipe-keys.md"


def keys(node: Any) -> Iterator[str]:
    """Every key that a schema defines, in any of its models."""
    if isinstance(node, dict):
        yield from node.get("properties", {})
        node = [*node.values()]
    if isinstance(node, list):
        for each in node:
            yield from keys(each)


def test_the_page_is_the_committed_one() -> None:
    assert PAGE.read_text() == reference(), "write it: builder recipe schema --markdown"


@pytest.mark.parametrize("base", [False, True])
def test_the_page_names_every_key_with_its_meaning(base: bool) -> None:
    found = set(keys(json_schema(base)))
    assert len(found) > 20
    page = PAGE.read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    tables = re.findall(r"(?m)^### `\[+(\w+)\]+`$", page)
    assert found <= {*tables, *(row.split("`")[1] for row in rows)}
    assert not [row for row in rows if row.endswith("|  |")]
