"""The models and limits of the server's numbers, and what an engine's ``--help`` lists of them."""

from __future__ import annotations

import pytest

from builder.checks.logit_test import OF_TEXT, TRIALS, drafts, limit_beside_f16, tried

MAINLINE = "--spec-type none,draft-simple,draft-mtp   kinds"
IK = """--spec-type SPEC[:k=v,...]   canonical speculative stage entry
                             types: none, draft, dspark, mtp
                             canonical keys: n_max,n_min
"""


@pytest.mark.parametrize(
    ("text", "listed", "compared"),
    [
        (MAINLINE, {"draft-simple", "draft-mtp"}, {"draft-simple", "draft-mtp"}),
        ("--spec-type {none,mtp}", {"mtp"}, {"mtp"}),
        ("--spec-type {none,mtp,a}\n--mtp-head FNAME   an assistant", {"mtp", "a"}, {"a"}),
        (IK, {"draft", "dspark", "mtp"}, set()),
        ("--draft-max N    tokens to draft", set(), set()),
    ],
)
def test_the_ways_to_draft_are_those_that_the_engine_lists(
    text: str, listed: set[str], compared: set[str]
) -> None:
    assert drafts(text) == listed
    assert tried(text) == compared


def test_options_that_an_engine_does_not_list_are_left_out() -> None:
    [simple] = [each for each in OF_TEXT if each.kind == "ngram-simple"]
    given = ["--spec-type", "ngram-simple", "--parallel", "1"]
    assert simple.options([]) == given
    size = "--spec-ngram-simple-size-n"
    assert simple.options([size, "--spec-draft-n-max"]) == [*given, size, "1"]


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
