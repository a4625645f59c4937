"""The search for the largest context that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from builder.presets.results import FitTrial

STEP = 1024  # tokens: the granularity of the search
SMALLEST = 1024


def search(
    tried: dict[int, FitTrial], attempt: Callable[[int], FitTrial], longest: int
) -> int | None:
    """The largest context that fits, to ``STEP`` tokens; None where not even the smallest does.

    It takes larger contexts than one that does not fit for ones that do not fit either.  The
    model's own maximum, ``longest``, is tried first.  ``tried`` gets each trial of ``attempt``.
    """
    stride, last = 0, 0

    def run(context: int) -> None:
        tried[context] = attempt(context)

    while True:
        low, high = _bounds(tried)
        if high is None:
            if low >= longest:
                return low
            run(longest)
            continue
        if high - low <= STEP or high <= SMALLEST:
            return low or None
        middle = (low + high) // 2
        guess = _predicted(tried)
        if stride:  # away from the prediction, in strides that grow until they halve
            fits = tried[last].fits
            middle = min(low + stride, middle) if fits else max(high - stride, middle)
        elif guess is not None:
            middle = guess
        stride = max(2 * stride, STEP) if guess is not None else 0
        last = _within(middle, low, high)
        run(last)


def _bounds(tried: Mapping[int, FitTrial]) -> tuple[int, int | None]:
    """The largest context that fits, 0 for none, and the smallest beyond it that does not; by an
    engine's own estimate, the one after the estimate does not."""
    low = max((context for context, trial in tried.items() if trial.fits), default=0)
    failed = {context: trial for context, trial in tried.items() if not trial.fits}
    above = [*failed, *(trial.estimate + 1 for trial in failed.values() if trial.estimate)]
    return low, min((context for context in above if context > low), default=None)


def _within(context: int, low: int, high: int) -> int:
    """The nearest multiple of ``STEP`` between two contexts that are more than one apart."""
    rounded = context // STEP * STEP
    least = max((low // STEP + 1) * STEP, SMALLEST)
    return min(max(rounded, least), (high - 1) // STEP * STEP)


def _predicted(tried: Mapping[int, FitTrial]) -> int | None:
    """The engine's own estimate, or where the line through the two largest trials that fit meets
    the card's memory; None where a card was full, and the engine answered all the same."""
    estimates = [trial.estimate for trial in tried.values() if trial.estimate]
    if estimates:
        return min(estimates)
    fitting = sorted(context for context, trial in tried.items() if trial.fits)[-2:]
    if len(fitting) < 2 or any(tried[context].retried for context in fitting):
        return None
    (one, other), (first, second) = fitting, (tried[context].share for context in fitting)
    if second <= first:
        return None
    return int(other + (1 - second) / (second - first) * (other - one))
