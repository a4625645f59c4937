"""The paths that a preset promises, beside the paths that its server took."""

from __future__ import annotations

import pytest

from builder.checks.device import check_paths
from builder.presets import catalog
from simulator.work import Work, WorkPath
from support.shipped import RECIPES

TAKEN = (WorkPath("attention", "mma", 4), WorkPath("attention", "vec", 2))


@pytest.mark.parametrize(
    ("promised", "passed", "found"),
    [
        ({"attention": ["mma", "vec"]}, True, "attention: mma, vec"),
        ({"attention": ["mma", "vec", "tile"]}, True, "attention: mma, vec"),
        ({"attention": ["mma"]}, False, "attention: mma, vec"),
        ({"attention": ["mma", "vec"], "KV cache": ["turbo3"]}, False, "KV cache: none"),
    ],
)
def test_a_server_that_falls_back_fails(
    promised: dict[Work, list[str]], found: str, *, passed: bool
) -> None:
    preset = catalog.load(RECIPES).valid()[0].preset.model_copy(update={"paths": promised})
    check = check_paths("qwen", preset, TAKEN)
    assert (check.passed, check.found) == (passed, found)


def test_a_promise_is_part_of_what_was_tried() -> None:
    preset = catalog.load(RECIPES).valid()[0].preset
    other = preset.model_copy(update={"paths": {"attention": ["mma"]}})
    assert other.identity != preset.identity
