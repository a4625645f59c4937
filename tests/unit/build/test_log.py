"""The log of a build: its steps, its first errors, the known causes, and breakdowns."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build.log import BuildLog, BuildStep
from support.buildx_output import COMPILE

# As gcc 14, nvcc 13, apt 3.0 and BuildKit 0.28 print it.
FAILED = '#14 ERROR: process "cmake --build /build" did not complete successfully: exit code: 1'
KILLED = "#14 2.399 g++: fatal error: Killed signal terminated program cc1plus"
LACKING = """\
#9 0.097 W: Failed to fetch http://debian.invalid/debian/dists/trixie/InRelease  {}
#9 0.097 W: Some index files failed to download. They have been ignored, or old ones used instead.
#9 0.115 E: Unable to locate package nano"""
OF_APT = '#9 ERROR: process "sh -euc apt-get" did not complete successfully: exit code: 100'
MEMORY, AGAIN = "ran out of memory", "archive did not answer: try again"


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        ([KILLED, FAILED], MEMORY),
        (["#14 9.1 collect2: fatal error: ld terminated with signal 9 [Killed]", FAILED], MEMORY),
        (["#14 9.1 nvcc error   : 'cicc' died due to signal 9 (Kill signal)", FAILED], MEMORY),
        (["#14 1.860 virtual memory exhausted: Cannot allocate memory", FAILED], MEMORY),
        (["#14 0.489 Killed", FAILED.replace(": 1", ": 137")], MEMORY),
        ([FAILED.replace("exit code: 1", "cannot allocate memory")], MEMORY),
        *(
            ([f"#14 9.1 {line}", FAILED], MEMORY)
            for line in (
                # Python's subprocess, of ninja and of nvcc, which ends with the signal of cicc.
                "Command '['ninja', '-v']' returned non-zero exit status 137.",
                "subprocess.CalledProcessError: Command 'nvcc' returned non-zero exit status 9.",
                "subprocess.CalledProcessError: Command 'c++' died with <Signals.SIGKILL: 9>.",
                # dash, bash, make, ninja 1.13, cmake
                "Killed",
                "/bin/bash: line 1:    17 Killed                  cc1plus -c x.cpp",
                "make[2]: *** [CMakeFiles/x.dir/build.make:76: x.o] Error 137",
                "make: *** [Makefile:2: x] Killed",
                "FAILED: [code=137] x.o",
                # cargo, go, pip
                "  process didn't exit successfully: `rustc x.rs` (signal: 9, SIGKILL: kill)",
                "go: signal: killed",
                "  \u2502 exit code: -9",
                "memory allocation of 1073741824 bytes failed",
                # old gcc, clang, ld, nvcc, earlyoom's SIGTERM, the kernel
                "g++: internal compiler error: Killed (program cc1plus)",
                "clang++: error: unable to execute command: Killed",
                "/usr/bin/ld: final link failed: memory exhausted",
                "nvcc error   : 'ptxas' died due to signal 15 (Terminated)",
                "cc1plus: out of memory allocating 65536 bytes after a total of 1000 bytes",
                "ptxas fatal   : Memory allocation failure",
                "ninja: fatal: posix_spawn: Cannot allocate memory",
                "terminate called after throwing an instance of 'std::bad_alloc'",
                "  what():  std::bad_alloc",
                "FATAL ERROR: Allocation failed - JavaScript heap out of memory",
                "[1.2] Memory cgroup out of memory: Killed process 12 (cicc) total-vm:9kB",
            )
        ),
        ([FAILED.replace(": 1", ": 137: context canceled")], MEMORY),
        (
            [
                "#9 0.2 W: Failed to fetch https://m.invalid/debian/dists/trixie/InRelease  "
                "Certificate verification failed: The certificate is NOT trusted.",
                OF_APT,
            ],
            "BUILDER_DEBIAN_MIRROR",
        ),
        (
            [LACKING.format("407  Proxy Authentication Required [IP: 127.0.0.1 80]"), OF_APT],
            "login",
        ),
        ([LACKING.format("503  Service Unavailable [IP: 127.0.0.1 80]"), OF_APT], AGAIN),
        ([LACKING.format("Temporary failure resolving 'debian.invalid'"), OF_APT], AGAIN),
        (
            [
                "#9 0.2 E: Failed to fetch http://debian.invalid/debian/pool/n/nano_8.4-1_amd64.deb"
                "  503  Service Unavailable [IP: 127.0.0.1 80]",
                OF_APT,
            ],
            AGAIN,
        ),
        # Another step got over it, or was not the one that failed.
        ([LACKING.format("503  Service Unavailable"), "#9 DONE 3.1s", FAILED], ""),
        (
            ["#14 ERROR: importing cache manifest: not found", KILLED.replace("14", "15"), FAILED],
            "",
        ),
        # The commit's own: its build fetches something, or it crashes the compiler.
        (["#14 0.4 fatal: unable to access: Could not resolve host: github.com", FAILED], ""),
        (["#14 0.4 ConnectionError: Temporary failure in name resolution", FAILED], ""),
        (["#14 3.1 g++: internal compiler error: Segmentation fault signal 11", FAILED], ""),
        (["#14 3.1 a.c:7: error: exit code: 137 is undeclared", FAILED], ""),
        (
            [
                "#14 3.1 nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)",
                FAILED,
            ],
            "",
        ),
        (['#14 3.1 a.cu(7): warning: "cudaMalloc failed: out of memory"', FAILED], ""),
        (["#14 3.1 a.cpp:7: error: Killed was not declared", FAILED], ""),
        (["#14 3.1 a.cpp:7: error: no member f in 'std::bad_alloc'", FAILED], ""),
        (["#14 3.1 Command 'nvcc' returned non-zero exit status 1.", FAILED], ""),
    ],
)
def test_a_build_that_breaks_down_is_told_from_one_that_fails(
    tmp_path: Path, lines: list[str], hint: str
) -> None:
    log = BuildLog(tmp_path / "log")
    for line in "\n".join(lines).splitlines():
        log.line(line)
    assert hint in log.breakdown
    assert bool(log.breakdown) == bool(hint)
    # Another run counts its steps anew.
    log.begin()
    log.line(FAILED)
    log.line(OF_APT)
    assert not log.breakdown


@pytest.fixture
def log(tmp_path: Path) -> BuildLog:
    return BuildLog(tmp_path / "logs" / "x.log")


def test_the_steps_of_a_compile_are_told_from_all_else(log: BuildLog) -> None:
    steps = [
        found for line in COMPILE.splitlines() if isinstance(found := log.line(line), BuildStep)
    ]
    assert steps == [
        BuildStep(22, 339, "ccache g++ -Werror -I/src/error_code.d -c /src/a.cpp"),
        BuildStep(23, 339, "Building CUDA object x.o"),
    ]


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("#12 3.1 [3/16] Building CUDA object x.o", BuildStep(3, 16, "Building CUDA object x.o")),
        ("#9 1734.08 [339/339] Linking", BuildStep(339, 339, "Linking")),
        ("#12 [build 3/16] RUN x", "#12 [build 3/16] RUN x"),
        ("#12 sha256:0123 3.1MB / 16MB 0.3s", "#12 sha256:0123 3.1MB / 16MB 0.3s"),
        ("#12 3.1 [3/16 x", "#12 3.1 [3/16 x"),
        ("", ""),
    ],
)
def test_a_line_is_a_step_or_itself(log: BuildLog, line: str, step: BuildStep | str) -> None:
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
    assert log.reason == log.errors[2]


def test_what_follows_from_the_first_errors_does_not_push_them_out(log: BuildLog) -> None:
    for number in range(200):
        log.line(f"#9 1.0 /src/{number}.cpp:1:1: error: no {number}")
    assert log.errors[0] == "/src/0.cpp:1:1: error: no 0"
    assert len(log.errors) < 20


def test_a_step_that_fails_without_an_error_has_no_reason(log: BuildLog) -> None:
    for line in (
        "#9 1.20 Traceback (most recent call last):",
        '#22 ERROR: process "sh -c x" did not complete successfully: exit code: 1',
        "1.20 Traceback (most recent call last):",
        'ERROR: failed to build: failed to solve: process "sh -c x" did not complete successfully',
        "#9 1.30 CMake Error at CMakeLists.txt:3 (message):",
    ):
        log.line(line)
    assert len(log.errors) == 5
    assert log.reason == ""


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
        "ptxas a.ptx, line 7; error   : Feature '.block_scale' not supported on .target 'sm_120'",
        "nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)",
        "nvlink error   : Undefined reference to '_Z1fv' in 'a.o'",
        "nvlink fatal   : Unknown arch name '(null)'",
        "fatbinary fatal   : Unknown option '-nope'",
        "error[E0425]: cannot find value `x` in this scope",
        "/bin/sh: 1: cmake: not found",
        "x.sh: line 3: ./configure: Permission denied",
        "ModuleNotFoundError: No module named 'setuptools'",
        "fatal: unable to access 'https://x.invalid/': Connection refused",
        "npm error code ENOTFOUND",
    ],
)
def test_a_tool_that_says_why_is_heard(log: BuildLog, line: str) -> None:
    log.line(f"#9 12.30 {line}")
    assert log.errors == [line]
    assert log.reason == ("" if line.startswith(("Traceback", "CMake Error")) else line)


@pytest.mark.parametrize(
    "line",
    [
        "[1/2] ccache g++ -Werror=format -c /src/error.cpp",
        "-- Performing Test HAS_ERROR - Failed",
        "-- Looking for error.h",
        "[2/2] Building CXX object error_code.cpp.o",
        "0 errors, 0 warnings",
        '[3/9] c++ -DMESSAGE="error: bad" -o x x.cpp',
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
        *(
            (f"ptxas x.ptx, line 7; error   : {what} not supported on .target 'sm_120'", hint)
            for what, hint in (
                ("Instruction 'mma with block scale'", 'arch = ["120a"]'),
                ("Instruction 'mma with with FP6/FP4 floating point type'", 'arch = ["120a"]'),
                ("Feature '.kind::mxf4'", 'arch = ["120a"]'),
                ("Feature '.scale_vec::2X'", 'arch = ["120a"]'),
                ("Instruction 'cvt with .e2m3x2/.e3m2x2'", 'arch = ["120a"]'),
                ("Feature '.m16n8'", 'arch = ["120a"]'),
                ("Instruction 'setmaxnreg.inc'", 'arch = ["120a"]'),
                ("Instruction 'tcgen05.fence'", "no GPU of sm_12x has"),
                ("Instruction 'wgmma.fence'", "no GPU of sm_12x has"),
                ("Feature '.rs'", "no GPU of sm_12x has"),
            )
        ),
    ],
)
def test_a_known_cause_is_named(log: BuildLog, line: str, hint: str) -> None:
    log.line(f"#9 12.30 {line}")
    (found,) = log.all_text_hints
    assert hint in found


@pytest.mark.parametrize(
    "line",
    [
        "   12 |   } catch (const std::bad_alloc & e) {",
        'a.cu(7): warning: "cudaMalloc failed: out of memory"',
        "a.cpp:7: error: no member f in 'std::bad_alloc'",
    ],
)
def test_source_that_speaks_of_memory_is_no_cause(log: BuildLog, line: str) -> None:
    log.line(f"#9 12.30 {line}")
    assert not log.all_text_hints


def test_the_definitions_that_cmake_does_not_use_are_those_of_the_last_run(log: BuildLog) -> None:
    log.line("#9 1.2 error: the project does not use these definitions of [[cmake]] 2: A_B C")
    assert log.unused == [(2, "A_B"), (2, "C")]
    assert log.reason.startswith("error: the project")
    log.begin()
    assert log.unused == []


def test_the_cause_is_kept_and_not_its_consequence(log: BuildLog) -> None:
    """As nvcc 13.0 prints it, called without ninja."""
    cause = (
        "ptxas /tmp/tmpxft_00000009_00000000-6_a.ptx, line 28; error   : Feature '.kind::mxf4' "
        "not supported on .target 'sm_120'"
    )
    for line in (cause, "ptxas fatal   : Ptx assembly aborted due to errors"):
        log.line(f"#14 12.30 {line}")
    assert log.reason == cause


@pytest.mark.parametrize(
    "line",
    [
        '#7 ERROR: image "docker.io/builder-test/root:small": already exists',
        "#5 ERROR: failed to prepare: parent snapshot sha256:0123 does not exist: not found",
        'ERROR: failed to solve: lease "k9b85fmmnhy2": not found',
        "ERROR: failed to solve: missing lease requirement for setBlob",
        "ERROR: failed to solve: not found",
    ],
)
def test_another_build_in_the_way_is_no_failure(log: BuildLog, line: str) -> None:
    log.line("#7 naming to docker.io/builder-test/root:small done")
    assert not log.race_lost
    log.line(line)
    assert log.race_lost
    log.begin()
    assert not log.race_lost
