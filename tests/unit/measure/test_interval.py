"""The confidence interval of a mean, compared with SciPy's."""

from __future__ import annotations

import random
import statistics

import pytest
from scipy.stats import t

from builder.presets.receipts import QUANTILES, mean_interval, quantile


@pytest.mark.parametrize("count", [2, 3, 5, 10, 31])
def test_the_interval_is_that_of_scipy(count: int) -> None:
    source = random.Random(count)
    values = [source.gauss(100, 5) for _ in range(count)]
    found = mean_interval(values)
    error = statistics.stdev(values) / count**0.5
    expected = t.interval(0.95, count - 1, statistics.fmean(values), error)
    assert found == pytest.approx(tuple(map(float, expected)), rel=1e-4)


def test_the_quantiles_are_rounded_up() -> None:
    for freedom, found in enumerate(QUANTILES, 1):
        assert 0 <= found - float(t.ppf(0.975, freedom)) < 1e-3


@pytest.mark.parametrize("freedom", [1.0, 2.5, 8.9, 29.99, 1000.0])
def test_a_fraction_of_a_degree_of_freedom_widens(freedom: float) -> None:
    assert quantile(freedom) >= float(t.ppf(0.975, freedom))


def test_many_values_have_no_narrower_interval_than_theirs() -> None:
    values = [100.0, 101.0] * 50
    low, high = mean_interval(values) or (0, 0)
    error = statistics.stdev(values) / 10
    assert high - low >= 2 * float(t.ppf(0.975, 99)) * error


def test_one_value_has_none() -> None:
    assert mean_interval([5.0]) is None
    assert mean_interval([]) is None
