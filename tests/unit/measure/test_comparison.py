"""Benchmarks are compared: only a significant difference counts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from builder.measure.bench import compare, ratio_interval
from support.benchmarks import benchmark


def test_only_a_significant_difference_is_shown() -> None:
    base = [50.0, 51.0, 49.5, 50.5, 50.2]
    clear = compare(benchmark(base), benchmark([each * 1.2 for each in base]))
    (row,) = clear["rows"]
    assert row["verdict"] == "faster"
    assert row["ratio"] == pytest.approx(1.2)
    assert row["interval"] is not None
    assert row["interval"][0] < 1.2 < row["interval"][1]
    assert row["acceptance"] == (0.7, 0.7)
    noisy = compare(benchmark([50, 70, 40, 60]), benchmark([52, 75, 41, 66]))["rows"][0]
    assert noisy["verdict"] == "no difference shown"
    slower = compare(benchmark(base), benchmark([each / 2 for each in base]))["rows"][0]
    assert slower["verdict"] == "slower"
    alone = compare(benchmark([50.0]), benchmark([60.0]))["rows"][0]
    assert (alone["interval"], alone["verdict"]) == (None, "no difference shown")
    equal = compare(benchmark([50.0, 50.0]), benchmark([50.0, 50.0]))["rows"][0]
    assert equal["interval"] == (1.0, 1.0)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    source = random.Random(7)
    held = 0
    for _ in range(1000):
        first = [source.gauss(50, 2) for _ in range(10)]
        second = [source.gauss(60, 4) for _ in range(10)]
        found = ratio_interval(first, second)
        assert found is not None
        held += found[0] <= 1.2 <= found[1]
    assert 0.93 < held / 1000 < 0.97


@pytest.mark.parametrize(
    ("more", "what", "same"),
    [
        ({"settings": {"prompt": "q", "tokens": 100, "seed": 1}}, "prompt", False),
        ({"settings": {"prompt": "p", "tokens": 100, "seed": 2}}, "seed", True),
        ({"machine": {"gpus": [], "cpu": "a"}}, "gpus", False),
        ({"model": {"model": {"name": "other.gguf", "sha256": "1" * 64}}}, "files", False),
        ({"subject": {"image": "b:1", "flags": ["--mlock"]}}, "flags", True),
    ],
)
def test_other_differences_are_listed(more: dict[str, Any], what: str, same: bool) -> None:
    found = compare(benchmark([1.0, 2.0]), benchmark([1.0, 2.0], **more))
    assert what in [difference["what"] for difference in found["differences"]]
    assert any(each["decisive"] for each in found["differences"]) is not same


def test_a_newer_driver_is_worth_knowing_and_no_other_hardware() -> None:
    first = benchmark([1.0, 2.0])
    gpu = {**first.machine["gpus"][0], "driver": "590.1"}
    found = compare(first, first.model_copy(update={"machine": {**first.machine, "gpus": [gpu]}}))
    assert [(each["what"], each["decisive"]) for each in found["differences"]] == [
        ("driver", False)
    ]


def test_benchmarks_without_a_common_context() -> None:
    with pytest.raises(ValueError, match="no context size in common"):
        compare(benchmark([1.0]), benchmark([1.0], context=None))


@pytest.mark.parametrize("speeds", [[], [0.0, 0.0]])
def test_a_benchmark_without_a_speed_is_not_compared(speeds: list[float]) -> None:
    for pair in ((speeds, [1.0, 2.0]), ([1.0, 2.0], speeds)):
        with pytest.raises(ValueError, match="no speed"):
            compare(*map(benchmark, pair))
