"""Evaluates the speeds of a benchmark's runs: steady, collapsing, cycling, or unsteady.

Published builds have shown 53, 55 and then 11 tokens per second, and speeds that swing between two
levels.  A difference counts only if it is large (10 %) *and* significant against the spread of the
runs, so that neither noise nor a tiny trend fails an image:

- two levels: the values form a fast and a slow group, at least six standard deviations apart.  If
  the last runs are slow, it is a collapse.  It is a cycle if fast runs came back, or if the slow
  phase is steady, has lasted three runs, and is not yet longer than the fast phase before it.
  Single slow runs between fast ones are only unsteady.
- a trend: Kendall's rank correlation of runs and speeds has p < 0.01, and the fitted line changes
  by 10 % from the first run to the last.
- fewer than six runs are too few for a test: a change of 10 % counts if every run goes the same
  way, and a change of 30 % always; two levels must be 30 % apart.

A drop in the last one or two runs is reported as well: more runs would show whether it lasts.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, groupby, pairwise
from typing import Literal

LEAST_CHANGE = 0.10
LARGE_CHANGE = 0.30
DISTANCE = 6.0  # between two levels, in standard deviations within them
LEAST_SPREAD = 0.005  # of the mean: clocks are not finer
RARE = 0.01
FEW = 6  # runs
LASTING = 3  # runs of a phase
EXACT = 33  # runs up to which the rank correlation is counted out
WIDE = 0.10  # deviation over mean that is called unsteady
LOST_ACCEPTANCE = 0.2

Shape = Literal["steady", "warming up", "collapse", "cycle", "unsteady"]


@dataclass(frozen=True, slots=True)
class Series:
    """The statistics of a series of speeds, and its shape."""

    mean: float
    lowest: float
    highest: float
    deviation: float
    """Standard deviation of the sample; 0 for a single run."""
    trend: float | None
    """Slope of the fitted line: percent of the mean per run; None where the runs do not show one:
    they are fewer than six, or chance alone gives such an order in more than 1 % of cases."""
    p_value: float | None
    """The trend's, by Kendall's rank correlation; None for fewer than six runs."""
    shape: Shape
    why: str

    @property
    def passed(self) -> bool:
        """Whether later runs are as fast as earlier ones."""
        return self.shape not in {"collapse", "cycle"}

    @property
    def shown_trend(self) -> str:
        """The trend in words."""
        if self.p_value is None:
            return "too few runs, or equal ones, for a trend"
        chance = f"(p = {self.p_value:.2g})"
        return (
            f"no trend {chance}"
            if self.trend is None
            else f"trend {self.trend:+.2f} % a run {chance}"
        )


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The accepted share of drafted tokens, over the runs."""

    shape: Literal["steady", "collapse", "nothing"]
    why: str

    @property
    def passed(self) -> bool:
        """Whether the draft still helps in the last runs."""
        return self.shape == "steady"


def evaluate(values: Sequence[float]) -> Series:
    """Evaluate the speeds of runs, in their order.

    Raises ``ValueError`` for an empty series, and for negative or infinite values.
    """
    _check(values)
    slope, start = _line(values)
    mean = statistics.fmean(values)
    p_value = _rank_p(values)
    shape, why = _shape(values, slope, start, p_value)
    return Series(
        mean=mean,
        lowest=min(values),
        highest=max(values),
        deviation=statistics.stdev(values) if len(values) > 1 else 0.0,
        trend=100 * slope / mean if mean and p_value is not None and p_value < RARE else None,
        p_value=p_value,
        shape=shape,
        why=why,
    )


def evaluate_acceptance(values: Sequence[float]) -> Acceptance:
    """Evaluate the acceptance of runs, in their order: it must not drop to zero.

    Raises ``ValueError`` as ``evaluate`` does.
    """
    _check(values)
    if not any(values):
        return Acceptance("nothing", "no drafted token was accepted")
    if len(values) > 1:
        split = _best_split(values)
        early, late = statistics.fmean(values[:split]), statistics.fmean(values[split:])
        if late < LOST_ACCEPTANCE * early:
            return Acceptance("collapse", _compared(split, len(values), early, late))
    return Acceptance("steady", f"{min(values):.2f} to {max(values):.2f}")


def _check(values: Sequence[float]) -> None:
    if not values:
        raise ValueError("there is no run to evaluate")
    if any(not math.isfinite(value) or value < 0 for value in values):
        raise ValueError("a speed is neither negative nor infinite")


def _line(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return 0.0, values[0]
    fitted = statistics.linear_regression(range(len(values)), values)
    return fitted.slope, fitted.intercept


def _rank_p(values: Sequence[float]) -> float | None:
    """Two-sided p-value of Kendall's rank correlation between the runs and their speeds.

    Exact for up to 33 runs without ties, else the normal approximation (M. G. Kendall, Rank
    Correlation Methods, chapters 4 and 5).  None below six runs, and where all are equal.
    """
    count = len(values)
    if count < FEW or len(set(values)) == 1:
        return None
    pairs = list(combinations(values, 2))
    falling = sum(before > after for before, after in pairs)
    rising = sum(before < after for before, after in pairs)
    ties = Counter(values).values()
    if count <= EXACT and max(ties) == 1:
        orders = _orders_by_inversions(count)
        return min(1.0, 2 * sum(orders[: min(falling, rising) + 1]) / math.factorial(count))
    variance = (_spread_of(count) - sum(_spread_of(size) for size in ties)) / 18
    return math.erfc(abs(rising - falling) / math.sqrt(2 * variance))


def _spread_of(size: int) -> int:
    return size * (size - 1) * (2 * size + 5)


def _orders_by_inversions(count: int) -> list[int]:
    """How many orders of ``count`` things have 0, 1, 2, ... inversions."""
    orders = [1]
    for size in range(2, count + 1):
        sums, count_of = [0, *accumulate(orders)], len(orders)
        wider = range(1, count_of + size)
        orders = [sums[min(at, count_of)] - sums[max(at - size, 0)] for at in wider]
    return orders


def _shape(
    values: Sequence[float], slope: float, start: float, p_value: float | None
) -> tuple[Shape, str]:
    if not any(values):
        return "collapse", "no run generated a token"
    levels = _levels(values)
    if levels is not None:
        return _of_levels(values, levels)
    if len(values) < FEW:
        return _of_few(values)
    change = slope * (len(values) - 1) / start if start > 0 else 0.0
    if p_value is not None and p_value < RARE and abs(change) >= LEAST_CHANGE:
        why = f"from run 1 to {len(values)} it changes by {change:+.0%} (p = {p_value:.2g})"
        return ("collapse" if change < 0 else "warming up"), why
    return _without_direction(values)


def _without_direction(values: Sequence[float]) -> tuple[Shape, str]:
    spread = statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0
    why = f"the deviation is {spread:.1%} of the mean"
    return ("unsteady" if spread > WIDE else "steady"), why


def _of_few(values: Sequence[float]) -> tuple[Shape, str]:
    if len(values) < 2:
        return "steady", "one run alone"
    split = _best_split(values)
    early, late = statistics.fmean(values[:split]), statistics.fmean(values[split:])
    change = (late - early) / early if early else math.inf
    steps = [after - before for before, after in pairwise(values)]
    one_way = all(step > 0 for step in steps) or all(step < 0 for step in steps)
    if abs(change) >= LARGE_CHANGE or (one_way and abs(change) >= LEAST_CHANGE):
        shape: Shape = "collapse" if change < 0 else "warming up"
        return shape, _compared(split, len(values), early, late)
    return _without_direction(values)


def _compared(split: int, count: int, early: float, late: float) -> str:
    share = f"{late / early:.0%} of" if early else "after"
    return (
        f"{_runs(split + 1, count)} have {late:.4g}, {share} the {early:.4g} of {_runs(1, split)}"
    )


def _runs(first: int, last: int) -> str:
    return f"run {first}" if first == last else f"runs {first} to {last}"


def _squares(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values)


def _best_split(values: Sequence[float]) -> int:
    """The split with the smallest sum of squares within both parts."""
    return min(
        range(1, len(values)), key=lambda cut: _squares(values[:cut]) + _squares(values[cut:])
    )


def _levels(values: Sequence[float]) -> list[bool] | None:
    """For each run whether it is a fast one; None if there are no two levels."""
    if len(values) < 3:
        return None
    ordered = sorted(values)
    split = _best_split(ordered)
    slow, fast = ordered[:split], ordered[split:]
    gap = statistics.fmean(fast) - statistics.fmean(slow)
    spread = math.sqrt((_squares(slow) + _squares(fast)) / (len(values) - 2))
    spread = max(spread, LEAST_SPREAD * statistics.fmean(values))
    least = LEAST_CHANGE if len(values) >= FEW else LARGE_CHANGE
    if gap < DISTANCE * spread or gap < least * statistics.fmean(fast):
        return None
    return [value >= fast[0] for value in values]


def _of_levels(values: Sequence[float], levels: Sequence[bool]) -> tuple[Shape, str]:
    phases = [(fast, len(list(group))) for fast, group in groupby(levels)]
    fast = statistics.fmean(v for v, level in zip(values, levels, strict=True) if level)
    slow = statistics.fmean(v for v, level in zip(values, levels, strict=True) if not level)
    listed = ", ".join(f"{count} {'fast' if level else 'slow'}" for level, count in phases)
    why = f"{listed}: {fast:.4g} and {slow:.4g}"
    if not phases[0][0]:
        phases = phases[1:]
        if len(phases) == 1:
            return "warming up", why
    dips = [count for level, count in phases if not level]
    if phases[-1][0]:
        return ("cycle" if max(dips) > 1 else "unsteady"), why
    came_back = any(count > 1 for count in dips[:-1])
    before, last = phases[-2][1], phases[-1][1]
    may_end = LASTING <= last <= before and _even(values[-last:])
    return ("cycle" if came_back or may_end else "collapse"), why


def _even(values: Sequence[float]) -> bool:
    mean = statistics.fmean(values)
    return mean > 0 and statistics.stdev(values) <= WIDE * mean
