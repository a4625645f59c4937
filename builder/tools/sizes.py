"""Numbers of bytes for people."""

from __future__ import annotations


def shown(count: int) -> str:
    """``21.90 GB`` or ``325.0 MB``: decimal units, as registries and the Hub show them."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
