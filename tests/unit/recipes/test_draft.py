"""Recipes as people write them: whatever the values are, they are read again as they were."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.recipes.edit import WIDTH, DraftTable, Line, lines_of, written

KEYS = st.text(min_size=1, max_size=30)
SCALARS = st.text(max_size=30) | st.integers(-(2**40), 2**40) | st.booleans()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=5,
)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
)
def test_every_value_is_read_again(
    top: dict[str, Any], table: dict[str, Any], listed: dict[str, Any]
) -> None:
    top = {f"_{key}": value for key, value in top.items() if not isinstance(value, dict)}
    tables = [
        DraftTable("", [Line("first", 1), *lines_of(top)]),
        DraftTable("[table]", lines_of(table)),
        DraftTable("[[listed]]", lines_of(listed)),
        DraftTable("[[listed]]", lines_of(listed)),
    ]
    expected = {"first": 1, **top, "table": table, "listed": [listed, listed]}
    assert tomllib.loads(written(tables)) == expected


def test_keys_are_aligned_and_long_values_are_broken() -> None:
    tables = [
        DraftTable("", [Line("engine", "x", "why"), Line("url", "y")], "from somewhere"),
        DraftTable("[empty]", []),
        DraftTable(
            "[[cmake]]", [Line("targets", ["a"]), Line("define", {"A": "x" * 60, "B": "y" * 60})]
        ),
        DraftTable("[[probe]]", [Line("has", ["value"] * 20)], "read"),
    ]
    text = written(tables)
    assert text.splitlines()[:4] == [
        "#:schema schemas/recipe.schema.json",
        "# from somewhere",
        'engine = "x"   # why',
        'url    = "y"',
    ]
    assert "[empty]" not in text
    assert "\n\n[cmake.define]\nA = " in text
    assert "\n# read\n[[probe]]\nhas = [\n    " in text
    assert max(map(len, text.splitlines())) <= WIDTH
