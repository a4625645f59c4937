"""Sizes of the context, and the search for the largest that fits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from builder.presets.fit import STEP, CardPeak, FitTrial, search_contexts

GIB = 1 << 30
LONGEST = 262144


def card_of(
    memory: float, need: Callable[[int], float]
) -> tuple[list[int], Callable[[int], FitTrial]]:
    """A card with ``memory`` bytes, and an engine that needs ``need(context)``; and its trials."""
    asked: list[int] = []

    def attempt(context: int) -> FitTrial:
        asked.append(context)
        fits = need(context) <= memory
        peak = int(min(need(context), memory))
        used = CardPeak(name="card", memory=int(memory), context=0, peak=peak)
        return FitTrial(context=context, fits=fits, why="" if fits else "no room", cards=(used,))

    return asked, attempt


def largest(memory: float, need: Callable[[int], float], first: tuple[int, ...]) -> tuple[int, int]:
    """The largest context that the search finds, and its number of trials."""
    asked, attempt = card_of(memory, need)
    tried = {context: attempt(context) for context in first}
    asked.clear()
    found = search_contexts(tried, attempt, LONGEST)
    assert len(set(asked)) == len(asked), "a context was tried twice"
    return found or 0, len(asked)


@pytest.mark.parametrize("limit", [20, 23.4, 24, 31, 40])
@pytest.mark.parametrize("first", [(32768,), (32768, 65536), (32768, 65536, 131072, LONGEST)])
def test_a_linear_engine_takes_few_trials(limit: float, first: tuple[int, ...]) -> None:
    def need(context: int) -> float:
        return 15 * GIB + 64 * 1024 * context

    found, trials = largest(limit * GIB, need, first)
    exact = int((limit - 15) * GIB / (64 * 1024))
    assert found == min(exact // STEP * STEP, LONGEST)
    assert trials <= 9
    if len(first) > 1:
        assert trials <= 4


@pytest.mark.parametrize("jump", [1024, 5000, 70000, 200001])
def test_memory_that_jumps_is_searched_too(jump: int) -> None:
    """A buffer that appears beyond some context: a line through the others predicts nothing."""

    def need(context: int) -> float:
        return 10 * GIB + 1024 * context + (20 * GIB if context > jump else 0)

    found, trials = largest(20 * GIB, need, (32768, 65536))
    assert found == jump // STEP * STEP
    assert trials <= 16


def test_peaks_of_a_card_that_was_full_predict_nothing() -> None:
    """An engine that frees its buffers when the card is full: from some context on it is."""
    asked, attempt = card_of(228_500, float)

    def full(context: int) -> FitTrial:
        found = attempt(context)
        card = found.cards[0].model_copy(update={"peak": 228_400 - context % 7})
        filled = {"cards": (card,), "retried": 3}
        return found.model_copy(update=filled) if found.fits and context > 80_000 else found

    tried = {context: full(context) for context in (32768, 65536, 131072, LONGEST)}
    asked.clear()
    assert search_contexts(tried, full, LONGEST) == 228_352
    assert len(asked) <= 7  # halves 131072 down to STEP


def test_the_models_own_maximum_is_tried_first() -> None:
    asked, attempt = card_of(100 * GIB, lambda _: GIB)
    tried = {32768: attempt(32768)}
    assert search_contexts(tried, attempt, LONGEST) == LONGEST
    assert asked == [32768, LONGEST]


def test_weights_that_do_not_fit_end_the_search() -> None:
    found, trials = largest(10 * GIB, lambda _: 15 * GIB, (32768, 65536))
    assert found == 0
    assert trials <= 7


def test_a_context_beyond_the_models_own_that_fits_is_the_largest() -> None:
    assert largest(100 * GIB, lambda _: GIB, (2 * LONGEST,)) == (2 * LONGEST, 0)


@pytest.mark.parametrize("first", [(32768,), (LONGEST,), (75000,)])
def test_an_engine_that_says_what_would_fit_is_tried_there(first: tuple[int, ...]) -> None:
    """vLLM fills its share of the card with any context, so that no line predicts anything."""
    asked: list[int] = []

    def attempt(context: int) -> FitTrial:
        asked.append(context)
        fits = context <= 51200 + 77
        used = CardPeak(name="card", memory=24, context=0, peak=22)
        estimate = None if fits else 51200 + 77
        return FitTrial(context=context, fits=fits, cards=(used,), estimate=estimate)

    assert (
        search_contexts({context: attempt(context) for context in first}, attempt, LONGEST) == 51200
    )
    assert len(asked) <= 3
