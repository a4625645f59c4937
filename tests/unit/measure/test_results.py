"""Benchmarks are written and read back."""

from __future__ import annotations

import json

import pytest

from builder.measure.bench import parse_results
from support.benchmarks import benchmark


def test_a_benchmark_is_kept_and_read_again() -> None:
    found = benchmark([1.0, 2.0])
    assert parse_results(json.dumps(found.model_dump(mode="json"))) == found
    points = [{"context": 1024, "warm_ups": [], "runs": [{"tokens": "100"}]}]
    for change in ({"format": 2}, {"other": 1}, {"points": points}, {"created": None}):
        with pytest.raises(ValueError, match="no benchmark of builder: "):
            parse_results(json.dumps(found.model_dump(mode="json") | change))
    for wrong in ("{}", "[]", "{"):
        with pytest.raises(ValueError, match="no benchmark of builder: "):
            parse_results(wrong)
