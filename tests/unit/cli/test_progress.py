"""The progress of a build on a terminal, and elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from builder.build.log import BuildLog
from builder.cli.session import BuildProgress
from support.buildx_output import COMPILE


@pytest.fixture
def log(tmp_path: Path) -> BuildLog:
    return BuildLog(tmp_path / "logs" / "x.log")


def watched(lines: str, log: BuildLog) -> str:
    said = io.StringIO()
    with BuildProgress(console=Console(file=said, soft_wrap=True, highlight=False)) as progress:
        progress.log("building [x] (0123)")
        for line in lines.splitlines():
            progress.on_progress(log.line(line))
    return said.getvalue()


def test_without_a_terminal_progress_is_plain_lines(log: BuildLog) -> None:
    said = watched(COMPILE, log)
    assert said.splitlines() == [
        "building [x] (0123)",
        "  [build 2/5] copy the source",
        "  [build 4/5] compile",
        "  compiling 22/339",
    ]
    assert "\x1b" not in said


def test_the_last_step_and_another_compile_are_always_shown(log: BuildLog) -> None:
    lines = "\n".join(f"#9 1.0 [{n}/{total}] x" for total in (50, 70) for n in range(1, total + 1))
    assert watched(lines, log).splitlines()[1:] == [
        "  compiling 1/50",
        "  compiling 50/50",
        "  compiling 1/70",
        "  compiling 70/70",
    ]


def test_on_a_terminal_the_compile_is_a_bar(log: BuildLog) -> None:
    said = io.StringIO()
    screen = Console(
        file=said, force_terminal=True, width=120, highlight=False, _environ={"TERM": "xterm"}
    )
    with BuildProgress(console=screen) as progress:
        progress.on_progress("#14 [build 4/5] RUN --network=none [bold]make[/bold]")
        for line in COMPILE.splitlines():
            progress.on_progress(log.line(line))
        progress.log("testing [x]")
    assert "[bold]make[/bold]" in said.getvalue()
    assert "/339" in said.getvalue()
    assert "testing [x]" in said.getvalue()
