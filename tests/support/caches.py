"""The memory of caches by arithmetic, from the values in a model's header.

``src/llama-kv-cache-iswa.cpp`` and ``src/llama-memory-recurrent.cpp`` of llama.cpp say how many
cells a cache has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from builder.presets import shapes

BITS = {"f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}
"""Bits of an element of a cache: q8_0 has 34 bytes for 32, q4_0 has 18 (ggml-common.h)."""
MICRO_BATCH = 512  # llama.cpp's n_ubatch
CELLS = 256  # a cache has a multiple of these


def bytes_of(name: str, context: int, kind: str, *, full: bool = False, kept: int = 0) -> float:
    """All caches of the shape: for keys and values of one type, and of recurrent layers.

    ``full``: layers with a sliding window have caches for the context all the same (swa_full).
    ``kept``: states of recurrent layers to go back to, one for each token of a draft.
    """
    shape = shapes.shape_of(name)
    values: Mapping[str, Any] = shape.values
    elements = sum(cells * width for cells, width in _attention(values, context, full))
    return 2 * elements * BITS[kind] / 8 + (1 + kept) * _states(values)


def _attention(values: Mapping[str, Any], context: int, full: bool) -> Iterator[tuple[int, int]]:
    """The cells, and the elements of a key, of each layer with a cache."""
    layers = values["block_count"] - values.get("nextn_predict_layers", 0)
    interval = values.get("full_attention_interval", 1)
    sliding = values.get("attention.sliding_window_pattern", [False] * layers)
    heads = values["attention.head_count_kv"]
    for number in range(layers - values.get("attention.shared_kv_layers", 0)):
        if (number + 1) % interval:
            continue
        size = values[f"attention.key_length{'_swa' if sliding[number] else ''}"]
        cells = _window(values, context) if sliding[number] and not full else context
        yield cells, size * (heads if isinstance(heads, int) else heads[number])


def _window(values: Mapping[str, Any], context: int) -> int:
    wanted = min(context, values["attention.sliding_window"] + MICRO_BATCH)
    return -(-wanted // CELLS) * CELLS


def _states(values: Mapping[str, Any]) -> int:
    """What recurrent layers keep of one sequence: of the convolution and of the delta net."""
    if "ssm.state_size" not in values:
        return 0
    state, heads = values["ssm.state_size"], values["ssm.time_step_rank"]
    key, value = state * values["ssm.group_count"], state * heads
    floats = (values["ssm.conv_kernel"] - 1) * (2 * key + value) + value * state
    layers = values["block_count"] - values.get("nextn_predict_layers", 0)
    return (layers - layers // values["full_attention_interval"]) * floats * 4
