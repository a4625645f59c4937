"""Benchmarks are written and read back."""

from __future__ import annotations

import json

import pytest

from builder.bench.results import from_json
from support.benchmarks import benchmark


def test_a_benchmark_is_kept_and_read_again() -> None:
    found = benchmark([1.0, 2.0])
    assert from_json(json.loads(json.dumps(found.as_json()))) == found
    for wrong in ({}, [], {"format": 2}, found.as_json() | {"other": 1}):
        with pytest.raises(ValueError, match=r"no benchmark|format"):
            from_json(wrong)
