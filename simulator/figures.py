"""Sizes of device memory as they are printed."""

from __future__ import annotations

MIB = 1 << 20


def mib(size: int) -> str:
    """``10038 MiB``; below 10 MiB with one decimal."""
    value = size / MIB
    return f"{value:.0f} MiB" if value >= 10 else f"{value:.1f} MiB"
