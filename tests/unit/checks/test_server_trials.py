"""The models and limits of the server's numbers, and what an engine's ``--help`` lists of them."""

from __future__ import annotations

import pytest

from builder.checks.logit_test import TRIALS, drafts, limit_beside_f16


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("--spec-type none,draft-simple,draft-mtp,draft-dflash   kinds", {"draft-mtp"}),
        ("--spec-type {none,mtp}", {"mtp"}),
        ("--spec-type {none,mtp}\n--mtp-head FNAME   an assistant", set()),
        ("--draft-max N    tokens to draft", set()),
    ],
)
def test_the_ways_to_draft_are_those_that_the_engine_lists(text: str, found: set[str]) -> None:
    assert drafts(text) & {"draft-mtp", "mtp"} == found


def test_each_model_is_tried_once() -> None:
    names = [trial.model.name for trial in TRIALS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("turbo2", 3.0),
        ("turbo3", 1.8),
        ("turbo3_tcq", 1.8),
        ("tbq4_0", 1.0),
        ("new", 3.0),
        ("q4_0", 0.5),
        ("q8_0", 0.1),
        ("f32", 0.05),
    ],
)
def test_a_type_that_a_cpu_lacks_may_differ_by_its_bits(kind: str, limit: float) -> None:
    assert limit_beside_f16(kind) == limit
