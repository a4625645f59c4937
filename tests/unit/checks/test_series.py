"""Series of speeds that people have published, and what they must be called."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from builder.checks.series import evaluate, evaluate_acceptance

FAST = [60.0, 60.8, 59.1, 60.5, 59.8]


@pytest.mark.parametrize(
    ("values", "shape", "passed"),
    [
        # Published runs.
        (
            [253.73, 248.63, 251.65, 251.75, 250.43, 245.62, 248.14, 249.72, 249.78, 243.58],
            "steady",
            True,
        ),
        ([53, 55, 11], "collapse", False),
        ([3.4, 1.5, 0.97], "collapse", False),
        ([73.94, 80.31, 85.06], "warming up", True),
        ([*FAST, 40.1, 39.6, 40.4, 40.0], "cycle", False),
        ([*FAST, 20.3, 20.0, 19.8, 20.1], "cycle", False),
        ([*FAST, 11.0, 11.2, 10.9, 11.1], "cycle", False),
        # More of these kinds.
        ([60.0] * 9 + [11], "collapse", False),
        ([60.0 - 3 * number for number in range(10)], "collapse", False),
        ([60, 61, 60, 11, 11, 11, 11, 11, 11, 11], "collapse", False),
        ([60, 58, 60, 61, 59, 60, 61, 20, 10, 5], "collapse", False),
        ([60, 61, 60, 20, 20, 20, 60, 61, 60, 20, 20, 20], "cycle", False),
        ([60, 61, 20, 20, 61, 60, 59, 61], "cycle", False),
        ([60, 60, 60, 20, 60, 61, 60], "unsteady", True),
        ([20, 60, 61, 60, 59, 60], "warming up", True),
        ([20, 60, 61, 60, 11, 11, 11, 11], "collapse", False),
        ([30, 35, 40, 44, 50, 55, 60, 66], "warming up", True),
        ([60, 48, 61, 52, 70, 44, 65, 58], "unsteady", True),
        ([10, 10.5, 9.8, 10.2], "steady", True),
        ([1500, 1200, 1250, 1600], "unsteady", True),
        ([10, 9.5, 9.1], "steady", True),
        ([10, 9.4, 8.6], "collapse", False),
        ([5.0] * 10, "steady", True),
        ([5.0], "steady", True),
        ([0.0, 0.0, 0.0], "collapse", False),
    ],
)
def test_the_shape_of_a_series(values: list[float], shape: str, passed: bool) -> None:
    series = evaluate(values)
    assert (series.shape, series.passed) == (shape, passed), series.why


def test_the_figures() -> None:
    values = [253.73, 248.63, 251.65, 251.75, 250.43, 245.62, 248.14, 249.72, 249.78, 243.58]
    series = evaluate(values)
    assert series.mean == pytest.approx(249.303)
    assert (series.lowest, series.highest) == (243.58, 253.73)
    assert series.deviation == pytest.approx(statistics.stdev(values))
    assert series.p_value == pytest.approx(0.0726, abs=0.001)
    assert evaluate([5.0]).p_value is None


def test_a_trend_is_stated_only_where_the_runs_show_one() -> None:
    # Published runs, whose order is likely by chance.
    values = [253.73, 248.63, 251.65, 251.75, 250.43, 245.62, 248.14, 249.72, 249.78, 243.58]
    assert evaluate(values).trend is None
    assert evaluate(values).shown_trend == "no trend (p = 0.073)"
    for few in ([90.0, 95.0, 100.0], [90.0, 95.0, 100.0, 105.0, 110.0]):
        assert evaluate(few).trend is None
        assert evaluate(few).shown_trend.startswith("too few runs")
    falling = evaluate([100.0 - step for step in range(10)])
    assert falling.trend == pytest.approx(-1 / 0.955, abs=0.01)
    assert falling.shown_trend == "trend -1.05 % a run (p = 5.5e-07)"


def test_the_reason_names_the_runs() -> None:
    assert evaluate([53, 55, 11]).why == "2 fast, 1 slow: 54 and 11"
    assert evaluate([3.4, 1.5, 0.97]).why == "runs 2 to 3 have 1.235, 36% of the 3.4 of run 1"


@pytest.mark.parametrize(("spread", "most"), [(0.03, 0.01), (0.15, 0.03)])
def test_noise_alone_hardly_ever_fails(spread: float, most: float) -> None:
    source = random.Random(120)
    series = [[max(0.0, source.gauss(100, 100 * spread)) for _ in range(10)] for _ in range(2000)]
    failed = sum(not evaluate(values).passed for values in series)
    assert failed / len(series) < most


@pytest.mark.parametrize("values", [[], [-1.0], [float("nan")], [float("inf"), 1.0]])
def test_values_that_are_no_speeds_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no run|neither negative"):
        evaluate(values)
    with pytest.raises(ValueError, match=r"no run|neither negative"):
        evaluate_acceptance(values)


@given(
    st.one_of(
        st.lists(st.floats(0.1, 1000), min_size=6, max_size=40),
        st.lists(st.sampled_from([10.0, 20.0, 30.0]), min_size=6, max_size=40),
    )
)
def test_the_rank_correlation_is_that_of_scipy(values: list[float]) -> None:
    found = evaluate(values).p_value
    if len(set(values)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(kendalltau(range(len(values)), values).pvalue)


speeds = st.lists(st.floats(0.1, 1000), min_size=1, max_size=30)


@given(speeds)
def test_any_series_is_evaluated(values: list[float]) -> None:
    series = evaluate(values)
    assert series.passed is (series.shape not in {"collapse", "cycle"})
    assert series.lowest <= series.mean + 1e-6
    assert series.why


@given(speeds, st.sampled_from([0.5, 2.0, 4.0]))
def test_the_unit_does_not_matter(values: list[float], factor: float) -> None:
    assert evaluate([factor * value for value in values]).shape == evaluate(values).shape


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ([0.7, 0.72, 0.69, 0.71], "steady"),
        ([0.7, 0.71, 0.05, 0.04], "collapse"),
        ([0.7, 0.71, 0.7, 0.0], "collapse"),
        ([0.4, 0.3, 0.35, 0.25], "steady"),
        ([0.0, 0.0], "nothing"),
        ([0.5], "steady"),
    ],
)
def test_acceptance_must_not_fall_to_nothing(values: list[float], shape: str) -> None:
    series = evaluate_acceptance(values)
    assert series.shape == shape
    assert series.passed is (shape == "steady")
