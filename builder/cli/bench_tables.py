"""The tables of benchmarks: one alone, and two side by side."""

from __future__ import annotations

from builder.bench import series
from builder.bench.comparison import Comparison
from builder.bench.results import Benchmark, Generation
from builder.cli.tables import pairs, table
from builder.cli.terminal import line


def print_benchmark(found: Benchmark) -> None:
    """Print each run of a benchmark, and their statistics."""
    header = ("", "t/s", "tokens", "drafted", "accepted", "acceptance", "prompt t/s")
    for point in found.points:
        title = "" if point.context is None else f"context of {point.context} tokens"
        line(f"\n{title}".rstrip())
        rows = [_row(f"run {number}", run) for number, run in enumerate(point.runs, 1)]
        table(header, [_row("warm-up", run) for run in point.warm_ups] + rows)
        speeds = series.evaluate([run.tokens_per_second for run in point.runs])
        timed_by = sorted({run.timed_by for run in point.runs})
        statistics = [
            ("average", f"{speeds.mean:.2f} t/s, by the clock of the {' and '.join(timed_by)}"),
            ("range", f"{speeds.lowest:.2f} to {speeds.highest:.2f} t/s"),
            ("deviation", f"{speeds.deviation:.2f} t/s; trend {speeds.trend:+.2f} % per run"),
            ("verdict", f"{speeds.shape}: {speeds.why}"),
        ]
        shares = [run.acceptance for run in point.runs if run.acceptance is not None]
        if shares:
            acceptance = series.evaluate_acceptance(shares)
            statistics.append(("acceptance", f"{acceptance.shape}: {acceptance.why}"))
        pairs(statistics)


def _row(name: str, run: Generation) -> tuple[str, ...]:
    share = run.acceptance
    return (
        name,
        f"{run.tokens_per_second:.2f}",
        str(run.tokens),
        "" if run.drafted is None else str(run.drafted),
        "" if run.accepted is None else str(run.accepted),
        "" if share is None else f"{share:.1%}",
        "" if run.prompt_tokens_per_second is None else f"{run.prompt_tokens_per_second:.1f}",
    )


def print_comparison(found: Comparison) -> None:
    """Print two benchmarks side by side, and what else differs."""
    rows = []
    for row in found.rows:
        low_high = "" if row.interval is None else f"{row.interval[0]:.3f} to {row.interval[1]:.3f}"
        rows.append(
            (
                "" if row.context is None else str(row.context),
                f"{row.first:.2f}",
                f"{row.second:.2f}",
                f"{row.ratio:.3f}",
                low_high,
                "" if row.p_value is None else f"{row.p_value:.2g}",
                row.verdict,
            )
        )
    table(("context", "first t/s", "second t/s", "ratio", "95 %", "p", ""), rows)
    for each in found.differences:
        weight = "DIFFERS" if each.decisive else "differs"
        line(f"{weight}: {each.what}: {each.first} | {each.second}")
