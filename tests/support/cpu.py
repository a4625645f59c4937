"""Where the CPU time of the tests goes: ``pytest --cpu`` prints it by file, and the engine's.

A test's time is its process's, with all programs that it started and waited for, Docker's client
among them.  dockerd, containerd and containers work for several tests at once: they are counted for
all tests together.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
SHOWN = 25  # files
ENGINE = ("dockerd", "containerd")
KEY = "cpu"


def _processes() -> Iterator[tuple[int, str, int, float]]:
    """Id, name, parent and CPU seconds, with ended children (proc_pid_stat(5))."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        name = head.partition("(")[2]
        yield int(folder.name), name, int(fields[1]), sum(map(int, fields[11:15])) / TICKS


def _of_tree(root: int) -> float:
    """CPU seconds of a process and of everything below it."""
    found = {process: (parent, seconds) for process, _, parent, seconds in _processes()}
    members = {root}
    while more := {each for each, (parent, _) in found.items() if parent in members} - members:
        members |= more
    return sum(found[each][1] for each in members if each in found)


def _of_engine() -> Counter[str]:
    found: Counter[str] = Counter()
    for _, name, _, seconds in _processes():
        if name in ENGINE:
            found[name] += seconds
    return found


def _of_machine() -> float:
    """CPU seconds in which some core was busy (proc_stat(5))."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / TICKS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", action="store_true", help="print where the CPU time went")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cpu"):
        config.pluginmanager.register(_Cpu(), "cpu")


class _Cpu:
    def __init__(self) -> None:
        self.machine, self.engine = _of_machine(), _of_engine()
        self.by_file: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self.before = _of_tree(os.getpid())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = _of_tree(os.getpid())
        report.user_properties.append((KEY, now - self.before))
        self.before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, seconds in report.user_properties:
            if key == KEY:
                self.by_file[report.nodeid.partition("::")[0]] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        machine, tests = _of_machine() - self.machine, sum(self.by_file.values())
        engine = _of_engine() - self.engine
        line = terminalreporter.write_line
        terminalreporter.section("CPU seconds")
        for name, seconds in self.by_file.most_common(SHOWN):
            line(f"{seconds:8.1f}  {name}")
        docker = sum(v for k, v in self.by_file.items() if "/docker/" in k)
        line(f"{tests:8.1f}  all tests with their programs, of which tests/docker {docker:.1f}")
        for name, seconds in engine.items():
            line(f"{seconds:8.1f}  {name}")
        rest = machine - tests - sum(engine.values())
        line(f"{rest:8.1f}  the rest of the machine: containers, compilers")
