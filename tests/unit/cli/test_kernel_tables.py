"""The tables of ``builder kernels``: a screen on a terminal, everything in a pipe."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from builder.cli import kernel_tables, kernels, tables
from builder.errors import UntriedError
from builder.kernels.ledger import FatBinary, Ledger, Library
from builder.kernels.selection import Capability
from builder.tools.cubin import Kernel

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
    for module in (kernel_tables, tables):
        monkeypatch.setattr(module, "out", lambda: console)
    monkeypatch.setattr("builder.cli.terminal.out", lambda: console)
    return text


def test_a_terminal_gets_a_screen_with_the_summary_last(screen: io.StringIO) -> None:
    kernel_tables.print_ledger(ledger(), None, as_json=False, everything=False)
    lines = screen.getvalue().splitlines()
    assert lines[0].split()[:2] == ["library", "kernel"]
    assert lines[tables.FIRST_ROWS + 1 :][:2] == ["25 more kernels: --all lists every kernel", ""]
    assert lines[-1].split()[:4] == ["/opt/libone.so", "1", "sm_120a", "40"]
    assert len(lines) == tables.FIRST_ROWS + 5
    assert max(map(len, lines)) <= 100


def test_all_lists_every_kernel_on_a_terminal(screen: io.StringIO) -> None:
    kernel_tables.print_ledger(ledger(), None, as_json=False, everything=True)
    shown = "".join(screen.getvalue().split())
    assert "more kernels" not in screen.getvalue()
    assert shown.count("libone.so") == len(KERNELS) + 1


def test_a_pipe_gets_every_kernel_below_the_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    kernel_tables.print_ledger(ledger(), None, as_json=False, everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("/opt/libone.so\t1 sm_120a\t40\t")
    assert lines[1] == ""
    assert len(lines) == 2 + len(KERNELS)


def test_a_comparison_counts_added_and_gone_kernels_apart(screen: io.StringIO) -> None:
    before = (KERNELS[0], *(replace(each, registers=40) for each in KERNELS[1:20]))
    worse = kernel_tables.print_comparison(
        ledger(before), ledger(KERNELS[1:]), as_json=False, everything=False
    )
    assert len(worse) == 20
    lines = screen.getvalue().splitlines()
    assert lines[-1] == (
        "spills: up in 20 kernels (20 of them added), down in 1 (1 of them gone); "
        "registers of kernels in both images: up in 0, down in 19"
    )
    assert "25 more kernels: --all lists every kernel" in lines


def test_a_card_that_runs_no_kernel_is_named_with_the_code_that_is_there() -> None:
    (library,) = ledger().libraries
    none = FatBinary(0, "none", offered=("sm_120a", "compute_120"))
    found = replace(ledger(), libraries=(replace(library, fat_binaries=(none,)),))
    with pytest.raises(UntriedError) as error:
        kernels._runnable(replace(found, card=Capability(9, 0)))
    assert error.value.what == "no kernel of image runs on a card of compute capability 9.0"
    assert error.value.why == "its code is for compute_120, sm_120a"
    assert kernels._runnable(ledger()) == ledger()
