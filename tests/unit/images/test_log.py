"""A build that breaks down is told apart from one that fails, by its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.images.log import BuildLog

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
