"""Numbers of bytes for people."""

from __future__ import annotations

import pytest

from builder.tools import sizes


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0.0 MB"), (1_500_000, "1.5 MB"), (2_670_000_000, "2.67 GB")]
)
def test_sizes_are_decimal(count: int, text: str) -> None:
    assert sizes.shown(count) == text
