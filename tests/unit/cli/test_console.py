"""What a build's output becomes: progress for people, and the first errors of its log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from builder.cli.progress import BuildProgress
from builder.cli.tables import duration, size, table
from builder.images.log import BuildLog, Step

# As buildx 0.13 prints them with --progress=plain.
COMPILE = r"""#0 building with "default" instance using docker driver
#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 1.92kB done
#5 [context base-devel] load metadata for docker.io/builder-base/cuda-13.0:devel-0123456789ab
#8 [build 2/5] COPY --from=source /tree/ /src/
#8 CACHED
#14 [build 4/5] RUN --network=none --mount=type=cache,id=c,target=/ccache ["/inside/jobs", "3.0"]
#14 0.412 jobs: 2 (2 cores, 7 GiB free, 3.0 GiB a job)
#14 26.59   [22/339] ccache g++ -Werror -I/src/error_code.d -c /src/a.cpp
#14 31.20 [23/339] Building CUDA object x.o
#14 31.21 FAILED: x.o
#14 31.21 /usr/local/cuda/bin/nvcc -c /src/x.cu -o x.o
#14 31.21 /src/x.cu(7): error: identifier "missing" is undefined
#14 31.21
#14 31.30 1 error detected in the compilation of "/src/x.cu".
#14 31.31 ninja: build stopped: subcommand failed.
#14 ERROR: process "/inside/jobs 3.0" did not complete successfully: exit code: 1
"""


@pytest.fixture
def log(tmp_path: Path) -> BuildLog:
    return BuildLog(tmp_path / "logs" / "x.log")


def test_the_steps_of_a_compile_are_told_from_all_else(log: BuildLog) -> None:
    steps = [found for line in COMPILE.splitlines() if isinstance(found := log.line(line), Step)]
    assert steps == [
        Step(22, 339, "ccache g++ -Werror -I/src/error_code.d -c /src/a.cpp"),
        Step(23, 339, "Building CUDA object x.o"),
    ]


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("#12 3.1 [3/16] Building CUDA object x.o", Step(3, 16, "Building CUDA object x.o")),
        ("#9 1734.08 [339/339] Linking", Step(339, 339, "Linking")),
        ("#12 [build 3/16] RUN x", "#12 [build 3/16] RUN x"),
        ("#12 sha256:0123 3.1MB / 16MB 0.3s", "#12 sha256:0123 3.1MB / 16MB 0.3s"),
        ("#12 3.1 [3/16 x", "#12 3.1 [3/16 x"),
        ("", ""),
    ],
)
def test_a_line_is_a_step_or_itself(log: BuildLog, line: str, step: Step | str) -> None:
    assert log.line(line) == step


def test_the_log_keeps_every_line_and_the_first_errors(log: BuildLog) -> None:
    for line in COMPILE.splitlines():
        log.line(line)
    log.close()
    assert log.path.read_text() == COMPILE
    assert log.errors[:3] == [
        "FAILED: x.o",
        "/usr/local/cuda/bin/nvcc -c /src/x.cu -o x.o",
        '/src/x.cu(7): error: identifier "missing" is undefined',
    ]


def test_what_follows_from_the_first_errors_does_not_push_them_out(log: BuildLog) -> None:
    for number in range(200):
        log.line(f"#9 1.0 /src/{number}.cpp:1:1: error: no {number}")
    assert log.errors[0] == "/src/0.cpp:1:1: error: no 0"
    assert len(log.errors) < 20


@pytest.mark.parametrize(
    "line",
    [
        "/src/a.cpp:3:7: error: unused variable 'x' [-Werror=unused-variable]",
        "/usr/bin/ld: a.o: undefined reference to `f'",
        "/usr/bin/x86_64-linux-gnu-ld: cannot find -lcublas: No such file or directory",
        "CMake Error at CMakeLists.txt:3 (message):",
        "nvcc fatal   : Unsupported gpu architecture 'compute_13'",
        "ptxas fatal   : Unresolved extern function 'f'",
        "E: Unable to locate package nonsense",
        "ERROR: Could not find a version that satisfies the requirement x",
        "cp: error writing 'x': No space left on device",
        "Traceback (most recent call last):",
    ],
)
def test_a_tool_that_says_why_is_heard(log: BuildLog, line: str) -> None:
    log.line(f"#9 12.30 {line}")
    assert log.errors == [line]


@pytest.mark.parametrize(
    "line",
    [
        "[1/2] ccache g++ -Werror=format -c /src/error.cpp",
        "-- Performing Test HAS_ERROR - Failed",
        "-- Looking for error.h",
        "[2/2] Building CXX object error_code.cpp.o",
        "0 errors, 0 warnings",
    ],
)
def test_what_only_names_errors_is_none(log: BuildLog, line: str) -> None:
    log.line(f"#9 12.30 {line}")
    assert log.errors == []


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus", "--jobs N"),
        ("x.o: undefined reference to `cuMemCreate'", "vmm = false"),
        ("curl: (6) Could not resolve host: example.invalid", "fetch it before"),
        ("E: Unable to locate package nonsense", "check [debian]"),
    ],
)
def test_a_known_cause_is_named(log: BuildLog, line: str, hint: str) -> None:
    log.line(f"#9 12.30 {line}")
    (found,) = log.all_text_hints
    assert hint in found


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
        "  [build 2/5] COPY --from=source /tree/ /src/",
        '  [build 4/5] RUN ["/inside/jobs", "3.0"]',
        "  compiling 22/339",
    ]
    assert "\x1b" not in said


def test_the_last_step_and_another_compile_are_always_told(log: BuildLog) -> None:
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


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0.0 MB"), (1_500_000, "1.5 MB"), (2_670_000_000, "2.67 GB")]
)
def test_sizes_are_decimal(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 0 s"), (1525, "25 min 25 s")],
)
def test_durations_are_read_by_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_table_outside_a_terminal_is_lines_of_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    table(("a", "b"), [("[red]x[/red]", "y" * 300), ("z", "")])
    assert capsys.readouterr().out == f"[red]x[/red]\t{'y' * 300}\nz\n"
