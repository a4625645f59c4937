"""How far two continued prompts differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.checks.server import LOWEST, Continued, Difference, Prediction, described, difference

VOCABULARY = 5
LOGARITHMS = st.lists(
    st.lists(st.floats(-30, 0), min_size=VOCABULARY, max_size=VOCABULARY), min_size=1, max_size=8
)


def text_of(logarithms: list[list[float]]) -> Continued:
    """The likeliest tokens."""
    tokens = tuple(row.index(max(row)) for row in logarithms)
    return Continued("", tokens, tuple(dict(enumerate(row)) for row in logarithms))


@given(LOGARITHMS)
def test_a_text_does_not_differ_from_itself(logarithms: list[list[float]]) -> None:
    found = difference(text_of(logarithms), text_of(logarithms))
    assert found.equal == len(logarithms)
    assert found.distances == dict.fromkeys(range(len(logarithms)), 0.0)
    assert found.first_beyond(0.0) is None
    assert found.within(0.0)


@given(LOGARITHMS, st.integers(0, 7), st.integers(0, VOCABULARY - 1))
def test_one_logarithm_that_is_shifted_is_found(
    logarithms: list[list[float]], position: int, token: int
) -> None:
    position %= len(logarithms)
    shifted = [[*row] for row in logarithms]
    shifted[position][token] -= 0.25
    one = text_of(logarithms)
    other = Continued("", one.tokens, text_of(shifted).logarithms)  # the text stays
    found = difference(one, other)
    assert found.greatest == pytest.approx(0.25)
    assert found.first_beyond(0.2) == position
    assert found.first_beyond(0.3) is None
    assert not found.within(0.2)


def test_nothing_is_compared_behind_a_token_that_differs() -> None:
    one = text_of([[0, -3], [0, -3], [0, -3]])
    other = Continued("", (0, 1, 1), ({0: 0, 1: -3}, {0: -0.1, 1: -3}, {0: -9, 1: 0}))
    found = difference(one, other)
    assert found.equal == 1
    assert found.distances == {0: 0.0, 1: pytest.approx(0.1)}
    assert found.margin == 3


def test_a_near_tie_may_turn_and_a_preferred_token_may_not() -> None:
    other = Continued("", (1,), ({0: -0.7, 1: -0.6},))
    tie = difference(text_of([[-0.6, -0.7]]), other)
    assert (tie.equal, tie.margin) == (0, pytest.approx(0.1))
    assert tie.within(0.11)
    assert not tie.within(0.04)


def test_a_drafted_token_has_no_probabilities() -> None:
    one = text_of([[0, -3], [-3, 0]])
    found = difference(one, Continued("", (0, 1), ({}, {0: -3, 1: 0})))
    assert found.distances == {1: 0.0}
    assert found.equal == 2
    unknown = difference(Continued("", (0,), ({},)), Continued("", (1,), ({},)))
    assert unknown.margin == math.inf


def test_no_number_is_infinitely_far_from_a_number_and_from_none() -> None:
    one, none = text_of([[0, -3]]), Continued("", (0,), ({0: math.nan, 1: -3},))
    for pair in ((one, none), (none, one), (none, none)):
        assert difference(*pair).greatest == math.inf


def test_a_token_that_one_server_does_not_have_is_infinitely_far() -> None:
    one = text_of([[0, -3]])
    assert difference(one, Continued("", (0,), ({0: 0},))).greatest == math.inf


def test_an_answer_of_llama_cpp_is_read() -> None:
    # tools/server/server-task.cpp, probs_vector_to_json; the second token was drafted.
    text = """{"content": "ab", "tokens_predicted": 2, "completion_probabilities": [
        {"id": 5, "token": "a", "bytes": [97], "logprob": -0.5,
         "top_logprobs": [{"id": 5, "token": "a", "bytes": [97], "logprob": -0.5},
                          {"id": 7, "token": "c", "bytes": [99], "logprob": -3.402823e+38}]},
        {"id": 6, "token": "b", "bytes": [98], "logprob": 0.0, "top_logprobs": []}]}"""
    first, second = Prediction.model_validate_json(text).completion_probabilities
    assert [each.id for each in first.top_logprobs] == [5, 7]
    assert (second.id, second.top_logprobs) == (6, [])


def test_an_answer_of_ik_llama_cpp_is_read() -> None:
    # examples/server/server-common.cpp, probs_vector_to_json
    text = """{"content": "ab", "completion_probabilities": [
        {"content": "a", "probs": [{"tok_str": "a", "prob": 1}, {"tok_str": "a", "prob": 0.25},
                                   {"tok_str": "b", "prob": 0.0}]},
        {"content": "b", "probs": []}]}"""
    first, second = Prediction.model_validate_json(text).completion_probabilities
    assert [each.logprob for each in first.top_logprobs] == [0, math.log(0.25), LOWEST]
    ids = [each.id for each in first.top_logprobs]
    assert (first.id, second.id) == (ids[0], ids[2])
    assert len({*ids}) == 3


@pytest.mark.parametrize("value", ["NaN", "1.5", '"x"'])
def test_a_logarithm_that_is_none_is_refused(value: str) -> None:
    text = f'{{"content": "", "completion_probabilities": [{{"id": 1, "logprob": {value}}}]}}'
    with pytest.raises(ValueError, match="logprob"):
        Prediction.model_validate_json(text)


def test_a_difference_is_shown_with_its_first_token_and_the_greatest() -> None:
    found = Difference(4, {0: 0.01, 1: 0.2, 2: 0.3, 3: 0.1, 4: 0.02}, 1.5)
    assert described(found, 16, 0.1) == (
        "4 of 16 tokens are equal, the next one by a margin of 1.5; at most 0.3 apart, at token 3; "
        "first beyond the limit at token 2"
    )
    assert described(Difference(16, {0: 0.05}), 16, 0.1) == (
        "16 of 16 tokens are equal; at most 0.05 apart, at token 1"
    )
    assert described(Difference(16, {}), 16, 0.1) == (
        "16 of 16 tokens are equal; no probabilities to compare"
    )
