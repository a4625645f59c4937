"""Draws charts of benchmarks: speed by run and by context size, and the acceptance."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from builder.bench.results import Benchmark, Generation, Point

SUFFIXES = {".png": "png", ".svg": "svg"}
SIZE = (9.0, 5.0)  # inches
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "builder", "font.size": 10}


def draw(benchmarks: Sequence[tuple[str, Benchmark]], targets: Sequence[Path]) -> None:
    """Draw named benchmarks into files; the suffix decides the format: .png or .svg.

    The same figures give the same bytes.  Raises ``ValueError`` for another suffix, and if there
    are no runs.
    """
    wrong = [target.name for target in targets if target.suffix.lower() not in SUFFIXES]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: a chart is a .png or a .svg file")
    if not any(point.runs for _, found in benchmarks for point in found.points):
        raise ValueError("there are no runs to draw")
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure = _figure(benchmarks)
        for target in targets:
            kind = SUFFIXES[target.suffix.lower()]
            target.parent.mkdir(parents=True, exist_ok=True)
            nothing = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(target, format=kind, dpi=120, metadata=nothing)


def _figure(benchmarks: Sequence[tuple[str, Benchmark]]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sweep = any(len(found.points) > 1 for _, found in benchmarks)
    drafts = any(run.acceptance is not None for run in _all_runs(benchmarks))
    rows = 1 + sweep + drafts
    figure = Figure(figsize=(SIZE[0], SIZE[1] * (0.6 + 0.5 * rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = iter(figure.subplots(rows, 1, squeeze=False)[:, 0])
    _by_run(next(axes), benchmarks, "tokens per second", lambda run: run.tokens_per_second)
    if sweep:
        _by_context(next(axes), benchmarks)
    if drafts:
        _by_run(next(axes), benchmarks, "accepted share of the draft", lambda run: run.acceptance)
    return figure


def _all_runs(benchmarks: Sequence[tuple[str, Benchmark]]) -> Iterator[Generation]:
    for _, found in benchmarks:
        for point in found.points:
            yield from point.runs


def _by_run(
    axes: Any,
    benchmarks: Sequence[tuple[str, Benchmark]],
    label: str,
    value: Callable[[Generation], float | None],
) -> None:
    from matplotlib.ticker import MaxNLocator

    for name, found in benchmarks:
        for point in found.points:
            values = [value(run) for run in point.runs]
            numbers = [number for number, each in enumerate(values, 1) if each is not None]
            shown = [each for each in values if each is not None]
            if shown:
                axes.plot(numbers, shown, marker="o", label=_name(name, point, found))
    axes.set_xlabel("run")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(axes, label)


def _by_context(axes: Any, benchmarks: Sequence[tuple[str, Benchmark]]) -> None:
    for name, found in benchmarks:
        points = [point for point in found.points if point.context is not None and point.runs]
        speeds = [[run.tokens_per_second for run in point.runs] for point in points]
        means = [statistics.fmean(each) for each in speeds]
        below = [mean - min(each) for mean, each in zip(means, speeds, strict=True)]
        above = [max(each) - mean for mean, each in zip(means, speeds, strict=True)]
        sizes = [(point.context or 0) / 1024 for point in points]
        if points:
            axes.errorbar(sizes, means, yerr=[below, above], marker="o", capsize=4, label=name)
    axes.set_xlabel("context, in 1024 tokens (bars: lowest and highest run)")
    _finish(axes, "tokens per second, mean")


def _finish(axes: Any, label: str) -> None:
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.1)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")


def _name(name: str, point: Point, found: Benchmark) -> str:
    if len(found.points) == 1 or point.context is None:
        return name
    return f"{name}, {point.context / 1024:g}K"
