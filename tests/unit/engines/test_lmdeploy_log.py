"""Figures of LMDeploy's log."""

from __future__ import annotations

from builder.engines.logs import GIB, StatedLog, read_lmdeploy


def test_the_room_for_the_cache_is_read() -> None:
    log = "[TM][INFO] Object cache budget: 4096.00 MB from free 5120.00 MB and ratio 0.800\n"
    assert read_lmdeploy(log) == StatedLog(kv_cache=4 * GIB)
    assert read_lmdeploy("nothing of it") == StatedLog()


def test_a_card_without_room_is_named() -> None:
    weights = "[TM][FATAL][1127.23:54:59.409299][allocator.cc:49] CUDA error: out of memory\n"
    assert read_lmdeploy(weights).no_room == "CUDA error: out of memory"
    cache = "[engine.cc:605] dp0 ID 2: cache out of memory, no request can be admitted; failing\n"
    assert read_lmdeploy(cache).no_room == "cache out of memory, no request can be admitted"


def test_the_tokens_of_the_cache_are_those_of_its_blocks() -> None:
    log = (
        "TurbomindEngineConfig(session_len=40960, cache_block_seq_len=64, tp=1)\n"
        "[turbomind.cc:338] Object cache budget: 1584.12 MB from free 15841.19 MB and ratio 0.100\n"
        "[slab.h:136] slab_size 67108864, object_size 9437184, object_count 7, ratio 0.984375\n"
    )
    assert (read_lmdeploy(log).kv_tokens, read_lmdeploy(log).longest) == (24 * 7 * 64, None)
    full = f"{log}cache out of memory, no request can be admitted\n"
    assert read_lmdeploy(full).longest == 24 * 7 * 64
    state = "slab_size 67108864, object_size 33554432, object_count 2, ratio 1\n"
    assert read_lmdeploy(log + state).kv_tokens is None
    assert read_lmdeploy(log.replace("Object cache budget", "")).kv_tokens is None
    assert read_lmdeploy(log.replace("slab_size 67108864", "slab_size 0")).kv_tokens is None
