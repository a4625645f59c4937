"""The results of a benchmark, with all settings that are needed to repeat it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.checks.series import Generation, quantile
from builder.core.json_model import first_error


@dataclass(frozen=True, slots=True)
class Loaded:
    """Where the engine's log states that it put the models; both are empty where it does not."""

    layers: tuple[tuple[int, int], ...]
    """Layers on the GPU and in all, of each model."""
    memory: Mapping[str, int]
    """Bytes on all GPUs by kind: weights, KV cache, compute."""


@dataclass(frozen=True, slots=True)
class Point:
    """The runs with one context size."""

    context: int | None
    """Context size in tokens; None if the server was not started by us."""
    warm_ups: tuple[Generation, ...]
    runs: tuple[Generation, ...]
    loaded: Loaded | None = None
    """None if the server was not started by us, or by an older builder."""


class Benchmark(BaseModel):
    """All points of one benchmark, with subject, model, machine and settings."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Literal[1] = 1
    subject: Mapping[str, Any]
    """The image (reference, digest, recipe, key) or the URL, and its flags."""
    model: Mapping[str, Any]
    """Files by role: name, size in bytes, sha256; or the name that the server lists."""
    machine: Mapping[str, Any]
    """GPUs (name, compute capability, driver, memory in MiB), CPU, engine, kernel."""
    settings: Mapping[str, Any]
    """Prompt, tokens, sampling, seeds, warm-ups."""
    points: tuple[Point, ...]
    created: str
    """RFC 3339, UTC."""
    builder: str
    """Version of builder."""

    def as_json(self) -> dict[str, Any]:
        """The benchmark as JSON data."""
        return self.model_dump(mode="json")


def parse_results(text: str) -> Benchmark:
    """The benchmark in the text of a file; raises ``ValueError`` for any other text."""
    try:
        return Benchmark.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(f"it is no benchmark of builder: {first_error(error)}") from error


# Compares two benchmarks: is the second one faster, and is that significant?

# Differences in these settings make two benchmarks incomparable.
DECISIVE = frozenset({"gpus", "files", "prompt", "tokens", "temperature", "top_k", "min_p", "fill"})


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting or a fact that differs between the two benchmarks."""

    what: str
    first: str
    second: str
    decisive: bool
    """Whether it makes the benchmarks incomparable."""


@dataclass(frozen=True, slots=True)
class ComparedPoint:
    """One context size, in both benchmarks."""

    context: int | None
    first: float
    """Mean tokens per second."""
    second: float
    ratio: float
    """second / first."""
    interval: tuple[float, float] | None
    """The ratio's, with 95 % confidence; None if one of them has fewer than two runs."""
    verdict: Literal["faster", "slower", "no difference shown"]
    acceptance: tuple[float | None, float | None]
    """Mean share of drafted tokens that were accepted."""


@dataclass(frozen=True, slots=True)
class BenchComparison:
    """One row for each common context size, and the differences."""

    rows: tuple[ComparedPoint, ...]
    differences: tuple[SettingDifference, ...]

    @property
    def same(self) -> bool:
        """Whether both measured the same on the same hardware."""
        return not any(difference.decisive for difference in self.differences)


def compare(first: Benchmark, second: Benchmark) -> BenchComparison:
    """Compare the context sizes that both have; raises ``ValueError`` if there is none."""
    others = {point.context: point for point in second.points}
    pairs = [(p, others[p.context]) for p in first.points if p.context in others]
    if not pairs:
        raise ValueError("they have no context size in common")
    rows = tuple(_row(one, other) for one, other in pairs)
    return BenchComparison(rows, tuple(_differences(first, second)))


def _row(first: Point, second: Point) -> ComparedPoint:
    one, other = _speeds(first), _speeds(second)
    if not one or not other:
        raise ValueError("one of them has no runs")
    means = statistics.fmean(one), statistics.fmean(other)
    interval = ratio_interval(one, other)
    shown = interval is not None and not interval[0] <= 1 <= interval[1]
    ratio = means[1] / means[0]
    direction: Literal["faster", "slower"] = "faster" if ratio > 1 else "slower"
    return ComparedPoint(
        first.context,
        *means,
        ratio,
        interval,
        direction if shown else "no difference shown",
        (_acceptance(first), _acceptance(second)),
    )


def _speeds(point: Point) -> list[float]:
    return [run.tokens_per_second for run in point.runs]


def _acceptance(point: Point) -> float | None:
    shares = [run.acceptance for run in point.runs if run.acceptance is not None]
    return statistics.fmean(shares) if shares else None


def ratio_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float] | None:
    """The interval of mean(second) / mean(first) with 95 % confidence.

    By the delta method on the logarithm of the ratio (Casella and Berger, Statistical Inference,
    5.5.4), with the degrees of freedom of Welch and Satterthwaite.  None for fewer than two runs.
    """
    if len(first) < 2 or len(second) < 2:
        return None
    parts = [_relative_variance(values) for values in (first, second)]
    ratio = statistics.fmean(second) / statistics.fmean(first)
    total = sum(parts)
    if total == 0:
        return ratio, ratio
    sizes = (len(first), len(second))
    freedom = total**2 / sum(p**2 / (n - 1) for p, n in zip(parts, sizes, strict=True))
    reach = quantile(freedom) * math.sqrt(total)
    return ratio * math.exp(-reach), ratio * math.exp(reach)


def _relative_variance(values: Sequence[float]) -> float:
    """Variance of the mean, over its square."""
    return statistics.variance(values) / len(values) / statistics.fmean(values) ** 2


def _differences(first: Benchmark, second: Benchmark) -> Iterator[SettingDifference]:
    pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [
        (_hardware(first), _hardware(second)),
        (first.machine, second.machine),
        ({"files": _files(first)}, {"files": _files(second)}),
        (first.settings, second.settings),
        ({"flags": first.subject.get("flags")}, {"flags": second.subject.get("flags")}),
    ]
    seen = set()
    for one, other in pairs:
        for name in [*one, *(name for name in other if name not in one)]:
            if name not in seen and one.get(name) != other.get(name):
                values = (_shown(one.get(name)), _shown(other.get(name)))
                yield SettingDifference(name, *values, name in DECISIVE)
            seen.add(name)


def _hardware(found: Benchmark) -> dict[str, Any]:
    """GPUs by name and memory; the driver apart, because it may differ."""
    gpus = found.machine.get("gpus") or []
    return {
        "gpus": [f"{gpu['name']}, {gpu['memory']} MiB" for gpu in gpus],
        "driver": sorted({gpu["driver"] for gpu in gpus}),
    }


def _files(found: Benchmark) -> dict[str, Any]:
    return {role: file.get("sha256") or file.get("name") for role, file in found.model.items()}


def _shown(value: Any) -> str:
    return "none" if value in (None, [], {}, "") else str(value)
