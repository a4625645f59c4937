"""What people see: messages, the live progress of a compile, tables and the summary.

Messages and progress go to the standard error, results to the standard output.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from builder.bench.comparison import Comparison
from builder.bench.results import Benchmark, Generation
from builder.errors import as_started, plain
from builder.images.log import Step
from builder.pipeline import Outcome
from builder.recipes.edit import Target
from builder.records.markdown import STATES as CHECK_STATES
from builder.records.record import Record
from builder.smoke.verdict import Verdict
from builder.upstream.patch_state import STATES, Finding
from builder.upstream.pins import PinStatus
from builder.upstream.pull_requests import Drift
from builder.upstream.session import Change
from builder.upstream.track import Lag

NEW_STEP = re.compile(r"#\d+ (?:\[((?!internal|context)[^\]]+)\] (.*)|(exporting layers)$)")
RUN_OPTIONS = re.compile(r"(?<=^RUN )(?:--\S+ )+")
QUIET = 15.0  # seconds between two lines of progress where there is no terminal

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def log(message: str) -> None:
    """Tell people what is going on."""
    err.print(escape(as_started(plain(message))))


class CompileColumn(ProgressColumn):
    """Another column, shown only while the number of steps is known."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> RenderableType:
        """The other column's cell, or nothing."""
        return "" if task.total is None else self._column(task)


class BuildProgress:
    """The live progress of a build: a bar on a terminal, plain lines elsewhere."""

    def __init__(
        self,
        write_verdict: Callable[[str, Verdict], None] = lambda *_: None,
        console: Console = err,
    ) -> None:
        self._write_verdict = write_verdict
        self._console = console
        self._live = console.is_terminal
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            CompileColumn(BarColumn(bar_width=40)),
            CompileColumn(MofNCompleteColumn()),
            TimeElapsedColumn(),
            CompileColumn(TextColumn("left")),
            CompileColumn(TimeRemainingColumn()),
            console=console,
            transient=True,
        )
        self._task: Any = None
        self._last = 0.0
        self._total = 0
        self._stage_said = ""

    def __enter__(self) -> BuildProgress:
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._progress.stop()

    def log(self, message: str) -> None:
        """A message: something new begins, and the bar of what went before goes."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        self._console.print(escape(as_started(plain(message))))

    def on_verdict(self, name: str, verdict: Verdict) -> None:
        """The verdict on an image is written to the files that were asked for."""
        self._write_verdict(name, verdict)

    def on_progress(self, progress: Step | str) -> None:
        """A compile step moves the bar, and a new stage is named."""
        if isinstance(progress, Step):
            self._step(progress)
            return
        stage = NEW_STEP.match(progress)
        if stage:
            self._stage(stage[3] or f"[{stage[1]}] {RUN_OPTIONS.sub('', stage[2])}")

    def _stage(self, what: str) -> None:
        short = what if len(what) <= 100 else what[:97] + "..."
        if self._live:
            self._show(short, None, 0)
        elif short != self._stage_said:
            self._stage_said = short
            self._console.print(escape("  " + short))

    def _step(self, step: Step) -> None:
        if self._live:
            self._show("compiling", step.total, step.done)
            return
        now = time.monotonic()
        if step.total != self._total or step.done == step.total or now - self._last > QUIET:
            self._last, self._total = now, step.total
            self._console.print(f"  compiling {step.done}/{step.total}")

    def _show(self, what: str, total: int | None, done: int) -> None:
        if self._task is not None and self._total != (total or 0):
            self._progress.remove_task(self._task)
            self._task = None
        self._total = total or 0
        if self._task is None:
            self._task = self._progress.add_task(escape(what[:60]), total=total)
        self._progress.update(self._task, completed=done, description=escape(what[:60]))


def size(count: int) -> str:
    """Bytes as people read them: decimal, as registries show them."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def summary(outcome: Outcome) -> None:
    """What came out of a build: names, digest, checks, sizes, times."""
    state = "unchanged: built and verified before"
    if outcome.checked:
        state = "built and verified" if outcome.built else "built before, verified now"
    record = outcome.record
    sizes = record.verdict
    times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in record.seconds.items())
    lines = {
        "image": f"{record.references[0]}  ({state})",
        "also named": "  ".join(record.references[1:]),
        "digest": record.digest,
        "key": record.key,
        "checks": _checks(record),
        "size": f"{size(sizes.download_size)} to download, {size(sizes.unpacked_size)} unpacked",
        "time": times,
        "log": record.log,
    }
    _pairs([(name, value) for name, value in lines.items() if value])


def plan(described: dict[str, Any]) -> None:
    """A resolved plan, and below it those of its bases."""
    apart = {"base", "labels", "notes", "packages", "patches", "scripts"}
    lines = [(name, str(value)) for name, value in described.items() if name not in apart]
    lines += [("patch", json.dumps(patch)) for patch in described.get("patches", [])]
    lines += [("note", note) for note in described["notes"]]
    for context, files in described["packages"].items():
        lines += [(context, f"{name} {version}  sha256:{sha}") for name, version, sha in files]
    lines += [("script", f"{name}  sha256:{sha}") for name, sha in described["scripts"].items()]
    lines += [("label", f"{name}={value}") for name, value in described.get("labels", {}).items()]
    _pairs([(name, value) for name, value in lines if value not in {"", "None"}])
    if described["base"] is not None:
        out.print(f"\nstands on {described['base']['name']}:", markup=False)
        plan(described["base"])


def _pairs(lines: Sequence[tuple[str, str]]) -> None:
    """Names and values in two columns; a value is never cut, so that it can be copied."""
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        out.print(f"{name:{width}}  {value}", markup=False)


def _checks(record: Record) -> str:
    counts: dict[str, int] = {}
    for check in record.verdict.checks:
        counts[check.kind] = counts.get(check.kind, 0) + 1
    return f"{len(record.verdict.checks)} checks: " + ", ".join(
        f"{kind} {count}" if count > 1 else kind for kind, count in counts.items()
    )


def verdict(found: Verdict) -> None:
    """Every check of a verdict, a line each."""
    rows = [
        (
            CHECK_STATES[check.passed],
            check.kind,
            check.subject,
            check.expected,
            check.found,
            f"{check.seconds:.2f} s",
        )
        for check in found.checks
    ]
    table(("", "check", "of", "expected", "found", "took"), rows)


def benchmark(found: Benchmark) -> None:
    """Every run of a benchmark, and what they say together."""
    from builder.bench import series

    for point in found.points:
        title = "" if point.context is None else f"context of {point.context} tokens"
        line(f"\n{title}".rstrip())
        rows = [_run_of(f"run {number}", run) for number, run in enumerate(point.runs, 1)]
        warm = [_run_of("warm-up", run) for run in point.warm_ups]
        table(("", "t/s", "tokens", "drafted", "accepted", "acceptance", "prompt t/s"), warm + rows)
        speeds = series.evaluate([run.tokens_per_second for run in point.runs])
        timed_by = sorted({run.timed_by for run in point.runs})
        shares = [run.acceptance for run in point.runs if run.acceptance is not None]
        told = [
            ("average", f"{speeds.mean:.2f} t/s, by the clock of the {' and '.join(timed_by)}"),
            ("range", f"{speeds.lowest:.2f} to {speeds.highest:.2f} t/s"),
            ("deviation", f"{speeds.deviation:.2f} t/s; trend {speeds.trend:+.2f} % a run"),
            ("verdict", f"{speeds.shape}: {speeds.why}"),
        ]
        if shares:
            accepted = series.evaluate_acceptance(shares)
            told.append(("acceptance", f"{accepted.shape}: {accepted.why}"))
        _pairs(told)


def _run_of(name: str, run: Generation) -> tuple[str, ...]:
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


def comparison(found: Comparison) -> None:
    """Two benchmarks side by side, and what else differs."""
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


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; wide cells wrap on a terminal and stay on their line elsewhere."""
    if not out.is_terminal:
        for row in rows:
            cells = [" ".join(as_started(plain(cell)).split("\n")) for cell in row]
            out.file.write("\t".join(cells).rstrip() + "\n")  # print would expand the tabs
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*(escape(as_started(plain(cell))) for cell in row))
    out.print(drawn)


def line(text: str) -> None:
    """One line of a result."""
    out.print(as_started(plain(text)), markup=False)


def findings(found: Sequence[Finding], notes: Sequence[str]) -> None:
    """What becomes of patches: a line each, and below it what there is to know of the others."""
    if not found:
        err.print("no recipe has a patch")
    rows = [
        (finding.recipe, finding.patch, _target(finding), finding.state, _short(finding))
        for finding in found
    ]
    table(("recipe", "patch", "on", "", ""), rows)
    for finding in found:
        if not finding.good and (finding.details or finding.commits):
            line(f"\n{finding.recipe}: {finding.patch} on {_target(finding)}: {finding.state}")
            for detail in finding.details:
                line("\n".join(f"  {part}" for part in detail.splitlines()))
            for commit in finding.commits:
                line(f"  {'brought by' if finding.state == 'upstream' else 'changed by'} {commit}")
    for note in notes:
        line(note)


def _target(finding: Finding) -> str:
    named = finding.target if finding.target != finding.commit else ""
    return f"{named} {finding.commit[:9]}".strip()


def _short(finding: Finding) -> str:
    details = finding.details if finding.good else ()
    return ": ".join([STATES[finding.state], *(["; ".join(details)] if details else [])])


def change(changed: Change, found: Sequence[Finding]) -> None:
    """The difference that a command makes to a recipe, and what becomes of its patches."""
    if not changed.changed:
        err.print(f"{changed.file.name} is up to date", markup=False)
        return
    out.file.write(changed.difference)
    if found:
        line("")
        findings(found, ())


def drift(changes: Sequence[Drift]) -> None:
    """What became of frozen pull requests."""
    rows = [
        (
            each.recipe,
            f"pull {each.pull}",
            each.state,
            f"{each.frozen[:9]} -> {each.head[:9] or 'nothing'}",
            each.merged,
            each.told,
        )
        for each in changes
    ]
    table(("recipe", "patch", "", "head", "merged by", "GitHub says"), rows)
    for each in changes:
        if each.changes:
            line(f"\n{each.recipe}: pull {each.pull} changed since it was frozen:\n{each.changes}")


def lags(rows: Sequence[tuple[str, Lag]]) -> None:
    """Recipes whose upstream is ahead; those that are up to date are counted."""
    behind = [(name, lag) for name, lag in rows if lag.ahead or lag.rewritten]
    table(
        ("recipe", "upstream", "", "since", ""),
        [
            (
                name,
                _named(lag.target),
                f"{lag.ahead} {'releases' if lag.target.kind == 'release' else 'commits'} ahead",
                lag.since,
                "the pin is not in its history" if lag.rewritten else "",
            )
            for name, lag in behind
        ],
    )
    if rows:
        err.print(f"{len(rows) - len(behind)} of {len(rows)} are up to date")


def _named(target: Target) -> str:
    return target.name if target.kind == "release" else f"{target.name} {target.commit[:9]}"


def pin_statuses(found: Sequence[PinStatus]) -> None:
    """Pins, and whether they can still be fetched."""
    rows = [
        (
            each.state.upper() if each.state == "gone" else each.state,
            each.recipe,
            each.kind,
            each.what,
            each.where,
        )
        for each in found
    ]
    table(("", "recipe", "kind", "pin", "from"), rows)


def explanation(told: dict[str, Any]) -> None:
    """What an image will be made of, in the order in which it is made."""
    line(f"{told['name']}: {told['summary']} ({told['license']})\n{told['url']}")
    _paragraph("It is made from", told["source"])
    for patch in told["patches"]:
        how = "Patched with" if patch["expect"] == "applies" else "Not patched, for it is absent:"
        line(f"\n{how} {patch['name']}: {patch['why']}")
        about = {
            "from": patch["where"],
            "discussed at": patch["upstream"],
            "may go when": patch["drop_when"],
            "allowed": ", ".join(patch["allowed"]),
            "must print": ", ".join(patch["prints"]),
            "installed as": patch["installed_as"],
            "checked by": patch["checked_by"] or "nothing in the image",
        }
        _pairs([(f"  {name}", value) for name, value in about.items() if value])
    for start in told["starts"]:
        line(f"\nPatched at every start by {start['run']}: {start['why']}")
        about = {"may go when": start["drop_when"], "must print": ", ".join(start["prints"])}
        _pairs([(f"  {name}", value) for name, value in about.items() if value])
    for base in told["bases"]:
        line(f"\nOn the base {base['name']}: {base['summary']}")
        lines = {
            "of NVIDIA's wheels": ", ".join(base["brings"]),
            "the published image": base["published"],
            "Python packages": ", ".join(base["python"]),
        }
        lines |= {f"Debian, {k}": ", ".join(v) for k, v in base["packages"].items()}
        _pairs([(f"  {name}", value) for name, value in lines.items() if value])
        for note in base["notes"]:
            line(f"  {note}")
    line(f"\n{told['family_is']}")
    for number, definitions in enumerate(told["definitions"], 1):
        line(f"\ncmake call {number} is told (the last one of a name wins):")
        for origin in dict.fromkeys(each["from"] for each in definitions):
            line(f"  by {origin}:")
            mine = [each for each in definitions if each["from"] == origin]
            _pairs([(f"    {each['name']}", each["value"]) for each in mine])
    image = told["image"]
    runs = image["runs"] or "what its base runs"
    _paragraph("The image", [f"is {', '.join(image['tags'])}", f"runs {runs}"])
    if image["port"]:
        line(f"  listens on {image['port']}, health page /{image['health'] or ''}")
    for name, value in image["env"].items():
        line(f"  sets {name}={value}")
    _paragraph("The smoke test checks that", told["checks"])
    _paragraph("To know", told["notes"])


def _paragraph(title: str, lines: Sequence[str]) -> None:
    if lines:
        line("\n".join([f"\n{title}", *(f"  {each}" for each in lines)]))
