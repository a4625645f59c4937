"""Nights, as their history keeps them."""

from __future__ import annotations

from typing import Any

from builder.publish.nights import NightlyRun


def night(**changes: Any) -> NightlyRun:
    return NightlyRun(
        **{
            "recipe": "x-1",
            "channel": "nightly",
            "outcome": "moved",
            "started": "2026-11-21T03:00:00+00:00",
            "seconds": 1.0,
            **changes,
        }
    )
