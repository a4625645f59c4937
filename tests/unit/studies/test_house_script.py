"""studies/house.py, and the ratchet: what builder/SIZE says does not grow unsaid."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from support.environment import REPOSITORY


@pytest.fixture(scope="module")
def house() -> Any:
    spec = importlib.util.spec_from_file_location("house", REPOSITORY / "studies" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_nothing_grows_without_a_change_of_the_size(house: Any) -> None:
    kept = house.read()
    grown = {
        name: (counts, kept.get(name, ()))
        for name, counts in house.table().items()
        if name not in kept or any(now > then for now, then in zip(counts, kept[name], strict=True))
    }
    assert not grown, "make it smaller, or `studies/house.py --write` and say why in the commit"


def test_the_size_is_no_looser_than_a_hundredth(house: Any) -> None:
    """Lines that went are not there to be used up again."""
    kept, found = house.read(), house.table()
    assert {*kept} == {*found}
    assert kept["all"][1] <= found["all"][1] * 1.01, "`studies/house.py --write` keeps what was won"


def test_a_command_reaches_what_its_functions_import(house: Any) -> None:
    reached = house.reach("builder.cli.build")
    assert {"builder", "builder.core.errors", "builder.recipes.catalog"} <= reached
    assert "builder.cli.show" not in reached
    assert house.lines("builder.core.errors") == len(
        (REPOSITORY / "builder" / "core" / "errors.py").read_text().splitlines()
    )


def test_no_module_imports_in_a_circle(house: Any) -> None:
    assert house.circle() == []
