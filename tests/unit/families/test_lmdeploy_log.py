"""Figures of LMDeploy's log."""

from __future__ import annotations

from builder.families.lmdeploy_log import read
from builder.families.stated import GIB, StatedLog


def test_the_room_for_the_cache_is_read() -> None:
    log = "[TM][INFO] Object cache budget: 4096.00 MB from free 5120.00 MB and ratio 0.800\n"
    assert read(log) == StatedLog(kv_cache=4 * GIB)
    assert read("nothing of it") == StatedLog()


def test_a_card_without_room_is_named() -> None:
    weights = "[TM][FATAL][1127.23:54:59.409299][allocator.cc:49] CUDA error: out of memory\n"
    assert read(weights).no_room == "CUDA error: out of memory"
    cache = "[engine.cc:605] dp0 ID 2: cache out of memory, no request can be admitted; failing\n"
    assert read(cache).no_room == "cache out of memory, no request can be admitted"
