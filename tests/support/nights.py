"""Nights, as their history keeps them."""

from __future__ import annotations

from typing import Any

from builder.nightly.history import Night


def night(**changes: Any) -> Night:
    return Night(
        **{
            "recipe": "x-1",
            "channel": "nightly",
            "outcome": "moved",
            "started": "2026-11-21T03:00:00+00:00",
            "seconds": 1.0,
            **changes,
        }
    )
