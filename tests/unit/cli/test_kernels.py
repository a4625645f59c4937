"""The tables of ``builder kernels``: a screen on a terminal, everything in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from builder.cli import image, terminal
from simulator.ledger import FatBinary, Kernel, Ledger, Library
from simulator.selection import Capability

KERNELS = tuple(
    Kernel(f"_Z{len(name)}{name}Pf", 32, 0, 16, spills, 0, 0, 0, 128, "d" * 64)
    for number in range(40)
    for name, spills in [(f"a_kernel_with_a_long_name_{'x' * 90}_{number}", 40 - number)]
)


def ledger(found: tuple[Kernel, ...] = KERNELS) -> Ledger:
    library = Library("/opt/libone.so", (FatBinary(0, "sm_120a", found, ("sm_120a", "sm_90")),))
    return Ledger("image", "sha256:0", Capability(12, 0), (library,))


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 100 columns shows."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, soft_wrap=True, color_system=None)
    for module in (image, terminal):
        monkeypatch.setattr(module, "out", lambda: console)
    monkeypatch.setattr("builder.cli.terminal.out", lambda: console)
    return text


def test_a_terminal_gets_a_screen_with_the_summary_last(screen: io.StringIO) -> None:
    image.print_ledger(ledger(), as_json=False)
    lines = screen.getvalue().splitlines()
    assert lines[0].split()[:2] == ["library", "kernel"]
    assert lines[image.FIRST_ROWS + 1 :][:2] == [
        "25 more kernels: a pipe or a file gets them all",
        "",
    ]
    assert lines[-1].split()[:4] == ["/opt/libone.so", "1", "sm_120a", "40"]
    assert len(lines) == image.FIRST_ROWS + 5
    assert max(map(len, lines)) <= 100


def test_a_pipe_gets_every_kernel_below_the_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    image.print_ledger(ledger(), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("library\tcode\tkernels\t")
    assert lines[1].startswith("/opt/libone.so\t1 sm_120a\t40\t")
    assert lines[2] == ""
    assert len(lines) == 4 + len(KERNELS)
