"""What a command needs that builds or checks images: its session and its reporter."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from rich import progress as bars
from rich.console import Console, RenderableType
from rich.markup import escape

from builder.build.build import BuildSession
from builder.build.log import BuildStep, step_name
from builder.checks.subject import GpuTest
from builder.checks.verdict import Verdict, append_to_summary, markdown, write_junit
from builder.cli.options import catalog_at
from builder.cli.terminal import err
from builder.core import settings
from builder.core.errors import as_started, plain
from builder.core.platforms import Platform

# The progress of a build: a bar on a terminal, plain lines elsewhere.

QUIET = 15.0  # seconds between two lines of progress without a terminal


class CompileColumn(bars.ProgressColumn):
    """Another column, shown only while the number of steps is known."""

    def __init__(self, column: bars.ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: bars.Task) -> RenderableType:
        """The other column's cell, or nothing."""
        return "" if task.total is None else self._column(task)


class BuildProgress:
    """The reporter of builds: a live bar and messages on a console, verdicts to files."""

    def __init__(
        self,
        write_verdict: Callable[[str, Verdict], None] = lambda *_: None,
        console: Console | None = None,
    ) -> None:
        self.on_verdict = write_verdict
        self._console = err() if console is None else console
        self._live = self._console.is_terminal
        self._progress = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}"),
            CompileColumn(bars.BarColumn(bar_width=40)),
            CompileColumn(bars.MofNCompleteColumn()),
            bars.TimeElapsedColumn(),
            CompileColumn(bars.TextColumn("left")),
            CompileColumn(bars.TimeRemainingColumn()),
            console=self._console,
            transient=True,
        )
        self._lock = Lock()  # work beside a build reports, too
        self._task: bars.TaskID | None = None
        self._printed_at = 0.0
        self._total: int | None = None
        self._stage = ""

    def __enter__(self) -> BuildProgress:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.stop()

    def log(self, message: str) -> None:
        """Print a message, and remove the bar of the stage before it."""
        with self._lock:
            self._remove_task()
            self._console.print(escape(as_started(plain(message))))

    def on_progress(self, progress: BuildStep | str) -> None:
        """Show a compile step, or the step that a line of buildx's output begins."""
        with self._lock:
            if isinstance(progress, BuildStep):
                self._show_step(progress)
                return
            name = step_name(progress)
            if name is not None and self._live:
                self._show(name, None, 0)
            elif name is not None and name != self._stage:
                self._stage = name
                self._console.print(escape("  " + name))

    def _show_step(self, step: BuildStep) -> None:
        if self._live:
            self._show("compiling", step.total, step.done)
            return
        now = time.monotonic()
        due = now - self._printed_at > QUIET
        if step.total != self._total or step.done == step.total or due:
            self._printed_at, self._total = now, step.total
            self._console.print(f"  compiling {step.done}/{step.total}")

    def _show(self, name: str, total: int | None, done: int) -> None:
        if self._total != total:
            self._remove_task()
        self._total = total
        text = escape(name[:60])
        if self._task is None:
            self._task = self._progress.add_task(text, total=total)
        self._progress.update(self._task, completed=done, description=text)

    def _remove_task(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


# The reporter and the session.


def reporter(junit: Path | None = None) -> BuildProgress:
    """The reporter of builds; it writes each verdict to this file and the summary of a job."""
    verdicts: dict[str, Verdict] = {}

    def write(name: str, verdict: Verdict) -> None:
        verdicts[name] = verdict
        if junit is not None:
            write_junit(junit, verdicts)
        append_to_summary(markdown(name, verdict))

    return BuildProgress(write)


def build_session(
    progress: BuildProgress | None = None,
    *,
    root: Path | None = None,
    gpu_test: GpuTest | None = None,
    card: str | None = None,
    rebuild: bool = False,
    offline: bool = False,
    jobs: int | None = None,
    builder: str | None = None,
    platform: Platform | None = None,
) -> BuildSession:
    """The catalog, at ``root`` or where --catalog says, with the options and the reporter of
    builds, and the user's settings."""
    given = {"jobs": jobs, "buildx": builder}
    update = {name: value for name, value in given.items() if value is not None}
    return BuildSession(
        catalog=catalog_at(root),
        settings=settings.load().model_copy(update=update),
        reporter=progress or reporter(),
        gpu_test=gpu_test,
        card=card,
        rebuild=rebuild,
        offline=offline,
        platform=platform,
    )
