"""Figures of SGLang's log."""

from __future__ import annotations

from dataclasses import replace

from builder.engines.logs import GIB, StatedLog, read_sglang

# SGLang 0.5.23 on a simulated RTX 5050, shortened.
LOG = """
[2026-11-27 02:33:10] server_args={'model_path': '/model/tiny', 'attention_backend': 'triton', 'decode_attention_backend': None}
[2026-11-27 02:34:13] Load weight begin. avail mem=7.46 GB
[2026-11-27 02:34:14] Load weight end. elapsed=0.08 s, type=Qwen3ForCausalLM, avail mem=7.39 GB, mem usage=0.07 GB.
[2026-11-27 02:34:15] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 905895, K size: 1.73 GB, V size: 1.73 GB
[2026-11-27 02:34:15] Memory pool end. avail mem=3.90 GB
[2026-11-27 02:35:11] Capture target prefill CUDA graph end. elapsed=56.12 s, mem usage=0.13 GB, avail mem=3.65 GB.
[2026-11-27 02:35:14] Capture target decode CUDA graph end. bs=[1, 2, 4, 8], elapsed=2.39 s, mem usage=0.01 GB, avail mem=3.65 GB.
[2026-11-27 02:35:14] max_total_num_tokens=905895, chunked_prefill_size=2048, max_prefill_tokens=16384, available_gpu_mem=3.65 GB
"""  # noqa: E501
FIGURES = StatedLog(
    weights=round(0.07 * GIB),
    kv_cache=2 * round(1.73 * GIB),
    kv_tokens=905_895,
    attention="triton",
    graphs=round(0.13 * GIB) + round(0.01 * GIB),
)


def test_all_figures_are_read() -> None:
    assert read_sglang(LOG) == FIGURES


def test_what_a_log_does_not_state_has_no_value() -> None:
    assert read_sglang("The server is fired up and ready to roll!") == StatedLog()


def test_the_figures_of_a_drafter_and_of_recurrent_layers_are_added() -> None:
    """As ``mem_cache/memory_pool.py`` writes the second line."""
    more = (
        "Load weight end. elapsed=0.1 s, type=Draft, avail mem=7.0 GB, mem usage=1.50 GB.\n"
        "Mamba Cache is allocated. max_mamba_cache_size: 9, conv_state size: 0.25GB, "
        "ssm_state size: 0.75GB \n"
    )
    found = read_sglang(LOG + more)
    weights, cache = found.weights or 0, found.kv_cache or 0
    assert weights - round(0.07 * GIB) == round(1.5 * GIB)
    assert cache - 2 * round(1.73 * GIB) == GIB
    assert replace(found, weights=FIGURES.weights, kv_cache=FIGURES.kv_cache) == FIGURES


def test_a_cache_that_is_smaller_than_the_context_is_the_largest_context() -> None:
    line = "max_total_num_tokens=6202, max_running_requests=48, context_len=40960, available\n"
    found = read_sglang(LOG + line)
    assert (found.longest, found.no_room) == (6202, "a KV cache of 6,202 tokens")
    assert read_sglang(LOG + line.replace("40960", "6202")).longest is None


def test_what_the_card_has_no_room_for_is_read() -> None:
    """As ``model_executor/pool_configurator.py`` and PyTorch's allocator write it."""
    log = (
        "[2026-11-27 02:34:15] Scheduler hit an exception: Traceback (most recent call last):\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    )
    assert (
        read_sglang(log).no_room
        == "Not enough memory. Please try to increase --mem-fraction-static"
    )
    assert read_sglang(log).error == (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    )
    refused = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB. GPU 0 has a total "
        "capacity of 23.42 GiB of which 2.25 GiB is free. Including non-PyTorch memory"
    )
    assert read_sglang(refused).no_room.startswith("Tried to allocate 2.37 GiB")
