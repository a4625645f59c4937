"""What ``builder fit`` says below its table."""

from __future__ import annotations

import pytest

from builder.cli import run as fit
from builder.presets.fit import Fit, FitTrial

MAXIMUM = 262144


def found(*trials: FitTrial, context: int | None = MAXIMUM) -> Fit:
    fitting = [each.context for each in trials if each.fits]
    return Fit(
        recipe="engine-1",
        image="engine:1",
        digest="sha256:0",
        model={"name": "m.gguf", "size": 1, "read": 1, "context": context},
        cards=({"name": "card", "memory": 1 << 34, "unverified": {}},),
        trials=trials,
        largest=max(fitting, default=None),
        step=None,
    )


def trial(context: int, fits: bool = True, filled: int | None = None) -> FitTrial:
    return FitTrial(context=context, fits=fits, filled=context - 64 if filled is None else filled)


@pytest.mark.parametrize(
    ("trials", "text"),
    [
        ((trial(32768), trial(33792, fits=False)), "32768 tokens: 33792 does not fit"),
        ((trial(10),), "10 tokens: the largest that was tried"),
        ((trial(32768), trial(MAXIMUM)), "262144 tokens: the model's maximum"),
        ((trial(307200),), "307200 tokens: the largest that was tried"),
        ((trial(1024, fits=False),), "none"),
    ],
)
def test_the_largest_context_is_told_with_what_ends_it(
    trials: tuple[FitTrial, ...], text: str
) -> None:
    assert fit.largest(found(*trials)) == text


def test_contexts_beyond_the_models_own_are_named() -> None:
    result = found(trial(MAXIMUM), trial(307200), trial(400000, fits=False))
    assert fit.warning(result) == "more than the model's maximum of 262144: 307200"
    assert fit.warning(found(trial(307200), context=None)) == ""


def test_a_context_that_was_not_filled_is_named() -> None:
    result = found(trial(8192, filled=2035), trial(16384))
    assert fit.warning(result) == "the requests filled only 2035 of 8192 tokens"


def test_a_context_with_just_enough_room_is_named() -> None:
    tight = trial(16384).model_copy(update={"retried": 3})
    tighter = trial(32768).model_copy(update={"retried": 9})
    warned = "from 16384 on the engine had to free memory while it answered"
    assert fit.warning(found(trial(8192), tight, tighter)) == warned


def test_a_context_that_does_not_fit_below_one_that_does_is_named() -> None:
    result = found(trial(8192), trial(16384, fits=False), trial(32768), trial(65536, fits=False))
    assert fit.warning(result) == "16384 tokens do not fit, although 32768 do"
