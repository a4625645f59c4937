"""Figures of vLLM's log."""

from __future__ import annotations

from dataclasses import replace

from builder.engines.logs import GIB, StatedLog, read_vllm

# vLLM 0.20.2 on a simulated RTX 5070 Ti.
LOG = """
(EngineCore pid=139) INFO [cuda.py:368] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION'].
(EngineCore pid=139) INFO [flash_attn.py:646] Using FlashAttention version 2
(EngineCore pid=139) INFO [gpu_model_runner.py:4879] Model loading took 0.01 GiB memory and 1.717546 seconds
(EngineCore pid=139) INFO [monitor.py:53] torch.compile took 18.07 s in total
(EngineCore pid=139) INFO [gpu_model_runner.py:6042] Estimated CUDA graph memory: 0.11 GiB total
(EngineCore pid=139) INFO [gpu_worker.py:440] Available KV cache memory: 14.02 GiB
(EngineCore pid=139) INFO [kv_cache_utils.py:1708] GPU KV cache size: 7,349,216 tokens
(EngineCore pid=139) INFO [kv_cache_utils.py:1709] Maximum concurrency for 2,048 tokens per request: 3588.48x
(EngineCore pid=139) INFO [gpu_model_runner.py:6133] Graph capturing finished in 1 secs, took 0.03 GiB
"""  # noqa: E501
FIGURES = StatedLog(
    weights=round(0.01 * GIB),
    kv_cache=round(14.02 * GIB),
    kv_tokens=7_349_216,
    attention="FLASH_ATTN",
    flash=2,
    graphs=round(0.03 * GIB),
    compile_seconds=18.07,
)


def test_all_figures_are_read() -> None:
    assert read_vllm(LOG) == FIGURES
    assert FIGURES.text == (
        "weights 0.01 GiB, room for a KV cache of 14.02 GiB, 7,349,216 tokens, FLASH_ATTN, "
        "FlashAttention 2, CUDA graphs 0.03 GiB, torch.compile 18 s"
    )


def test_what_a_log_does_not_state_has_no_value() -> None:
    assert read_vllm("INFO: Application startup complete.") == StatedLog()
    assert StatedLog().text == ""
    eager = "\n".join(line for line in LOG.splitlines() if "torch.compile" not in line)
    assert read_vllm(eager) == replace(FIGURES, compile_seconds=None)


def test_the_last_figure_counts_and_none_may_be_left() -> None:
    later = f"{LOG}INFO Available KV cache memory: -1.25 GiB\n"
    assert read_vllm(later).kv_cache == round(-1.25 * GIB)


def test_what_the_card_has_no_room_for_is_read_with_the_largest_context() -> None:
    """As ``vllm/v1/core/kv_cache_utils.py`` of 0.20.2 and PyTorch's allocator write it."""
    small = (
        "ValueError: To serve at least one request with the models's max seq len (75000), "
        "(4.80 GiB KV cache is needed, which is larger than the available KV cache memory "
        "(3.24 GiB). Based on the available memory, the estimated maximum model length is 50176. "
        "Try increasing `gpu_memory_utilization`"
    )
    found = read_vllm(small)
    assert found.longest == 50176
    assert found.no_room == (
        "4.80 GiB KV cache is needed, which is larger than the available KV cache memory (3.24 GiB)"
    )
    none = read_vllm("ValueError: No available memory for the cache blocks. Try increasing")
    assert (none.no_room, none.longest) == ("No available memory for the cache blocks", None)
    refused = read_vllm(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB. GPU 0 has a total "
        "capacity of 23.42 GiB of which 2.25 GiB is free. Including non-PyTorch memory"
    )
    assert refused.no_room == (
        "Tried to allocate 2.37 GiB. GPU 0 has a total capacity of 23.42 GiB of which 2.25 GiB is "
        "free"
    )


def test_the_error_of_the_engine_is_read_although_the_server_ends_with_another() -> None:
    log = (
        '(EngineCore pid=7) ERROR 11-26 22:40:00 [core.py:1100]   File "x.py", line 1\n'
        "(EngineCore pid=7) ERROR 11-26 22:40:00 [core.py:1100] RuntimeError: Triton Error [CUDA]\n"
        "(APIServer pid=1) RuntimeError: Engine core initialization failed.\n"
    )
    assert read_vllm(log).error == "RuntimeError: Triton Error [CUDA]"
    other = log + (
        "(EngineCore pid=7) torch._dynamo.exc.Unsupported: Data-dependent assertion failed\n"
        "(EngineCore pid=7)   Explanation: Dynamo has determined\n"
        "(EngineCore pid=7) INFO 11-26 22:40:00 [core.py:1100] shutting down: now\n"
    )
    assert (
        read_vllm(other).error == "torch._dynamo.exc.Unsupported: Data-dependent assertion failed"
    )


def test_an_error_that_ends_with_a_colon_goes_on() -> None:
    """vLLM 0.20.2, ``choose_mp_linear_kernel``."""
    prefix = "(EngineCore pid=7) ERROR 11-26 22:40:00 [core.py:1100] "
    lines = ["ValueError: Failed to find a kernel. Reasons: ", " A needs 90", " B: 96 of 64"]
    log = "".join(f"{prefix}{line}\n" for line in lines) + "(APIServer pid=1) RuntimeError: x\n"
    assert read_vllm(log).error == (
        "ValueError: Failed to find a kernel. Reasons:\nA needs 90\nB: 96 of 64"
    )
    assert read_vllm(f"{prefix}{lines[0]}").error == "ValueError: Failed to find a kernel. Reasons:"


def test_a_drafter_may_have_an_attention_of_its_own() -> None:
    """vLLM 0.33.0 with ``--attention-backend TRITON_ATTN`` and MTP."""
    log = (
        "INFO [cuda.py:567] Using backend AttentionBackendEnum.FLASH_ATTN for vit attention\n"
        "INFO [cuda.py:448] Using AttentionBackendEnum.TRITON_ATTN backend.\n"
        "INFO [cuda.py:448] Using AttentionBackendEnum.TRITON_ATTN backend.\n"
        "INFO [cuda.py:508] Using FLASHINFER attention backend out of potential backends: [].\n"
    )
    assert read_vllm(log).attention == "TRITON_ATTN and FLASHINFER"
