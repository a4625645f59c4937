"""Measured benchmarks."""

from __future__ import annotations

from typing import Any

from builder.measure.bench import Benchmark, Point
from builder.presets.schema import Generation

GPU = {"name": "RTX 5090", "capability": "12.0", "driver": "580.1", "memory": 32607}


def benchmark(speeds: list[float], context: int | None = 1024, **more: Any) -> Benchmark:
    runs = tuple(
        Generation(100, speed, 10, 1.0, seed, drafted=10, accepted=7)
        for seed, speed in enumerate(speeds)
    )
    given: dict[str, Any] = {
        "subject": {"image": "a:1", "flags": []},
        "model": {"model": {"name": "m.gguf", "size": 1, "sha256": "0" * 64}},
        "machine": {
            "gpus": [GPU],
            "cpu": "a",
        },
        "settings": {"prompt": "p", "tokens": 100, "seed": 1},
        "points": (Point(context, (), runs),),
        "created": "2026-01-01T00:00:00+00:00",
        "builder": "0.1.0",
    }
    return Benchmark(**(given | more))
