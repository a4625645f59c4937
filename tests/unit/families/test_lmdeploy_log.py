"""Figures of LMDeploy's log."""

from __future__ import annotations

from builder.families.lmdeploy_log import read
from builder.families.stated import GIB, StatedLog


def test_the_room_for_the_cache_is_read() -> None:
    log = "[TM][INFO] Object cache budget: 4096.00 MB from free 5120.00 MB and ratio 0.800\n"
    assert read(log) == StatedLog(kv_cache=4 * GIB)
    assert read("nothing of it") == StatedLog()
