"""Figures of vLLM's log."""

from __future__ import annotations

from dataclasses import replace

from builder.servers.vllm_log import GIB, VllmLog, read

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
FIGURES = VllmLog(
    weights=round(0.01 * GIB),
    kv_cache=round(14.02 * GIB),
    kv_tokens=7_349_216,
    attention="FLASH_ATTN",
    flash=2,
    graphs=round(0.03 * GIB),
    compile_seconds=18.07,
)


def test_all_figures_are_read() -> None:
    assert read(LOG) == FIGURES
    assert FIGURES.text == (
        "weights 0.01 GiB, room for a KV cache of 14.02 GiB, 7,349,216 tokens, FLASH_ATTN, "
        "FlashAttention 2, CUDA graphs 0.03 GiB, torch.compile 18 s"
    )


def test_what_a_log_does_not_state_has_no_value() -> None:
    assert read("INFO: Application startup complete.") == VllmLog()
    assert VllmLog().text == ""
    eager = "\n".join(line for line in LOG.splitlines() if "torch.compile" not in line)
    assert read(eager) == replace(FIGURES, compile_seconds=None)


def test_the_last_figure_counts_and_none_may_be_left() -> None:
    later = f"{LOG}INFO Available KV cache memory: -1.25 GiB\n"
    assert read(later).kv_cache == round(-1.25 * GIB)
