"""The order of version tags."""

from __future__ import annotations

from builder.core.sizes import version_order


def test_numbers_of_a_tag_count_as_numbers() -> None:
    nines = "9" * 5000  # more digits than Python reads
    series = [
        ["b10018-1.0.0", "b10018-1.0.2", "b10018-1.0.10", f"b10018-1.0.{nines}", "b10019-1.0.0"],
        ["b10018-1.0.2-rc2", "b10018-1.0.2-rc10", "b10018-1.0.2"],
        ["v0.9.9", "v0.10.0-rc1", "v0.10.0", "v0.10.0-1", "v0.10.1"],
    ]
    for tags in series:
        newest_first = [*reversed(tags)]
        assert sorted(newest_first, key=version_order) == tags
