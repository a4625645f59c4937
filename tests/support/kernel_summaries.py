"""Summaries of kernels that spill."""

from __future__ import annotations

from builder.image.code_paths import KernelSummary, kernel_summary
from simulator.ledger import FatBinary, Kernel, Library
from simulator.selection import Capability


def summary_of(*spills: int, path: str = "/opt/lib/liba.so.1", card: int = 120) -> KernelSummary:
    """The summary of a library with a kernel for each number of spilled bytes."""
    kernels = tuple(
        Kernel(f"_Z2k{number}PKcS0_", 40, 0, spilled, spilled, 0, 0, 0, 128, "")
        for number, spilled in enumerate(spills)
    )
    found = Library(path, (FatBinary(0, "sm_120a", kernels), FatBinary(1, "none")))
    return kernel_summary([found], Capability(*divmod(card, 10)))
