"""The memory that one pass of a model reads: its weights by use, and its cache."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from builder.presets.shape import Shape

Use = Literal["rows", "layers", "experts", "output", "block", "block experts"]
"""The use of a tensor by a pass: it reads one of the ``rows``, all of ``layers`` and ``output``,
the ``experts`` that it needs; drafting reads the MTP block instead of the layers."""
SIXTEEN_BITS = 2  # bytes
UNQUANTIZED: frozenset[Use] = frozenset({"rows", "output", "block", "block experts"})


def weights(shape: Shape, size: int, *, checkpoint: bool) -> Mapping[Use, float]:
    """The bytes of a model of ``size`` bytes, by use; a use that is absent has none.

    All tensors have as many bits.  A ``checkpoint`` for vLLM keeps 16 where quantizers leave
    tensors alone: the embedding, the output and the MTP block.
    """
    layers = number(shape, "block_count", 0) - number(shape, "nextn_predict_layers", 0)
    output = "output.weight" if "output.weight" in shape.tensors else "token_embd.weight"
    parameters: Counter[Use] = Counter()
    for name, dimensions in shape.tensors.items():
        parameters[_use(name, layers, output)] += math.prod(dimensions)
    kept = {use: count for use, count in parameters.items() if checkpoint and use in UNQUANTIZED}
    if SIXTEEN_BITS * sum(kept.values()) >= size:
        kept = {}  # it is too small: they are quantized, too
    others = {use: count for use, count in parameters.items() if use not in kept}
    each = (size - SIXTEEN_BITS * sum(kept.values())) / sum(others.values())
    if checkpoint:  # its files may have other tensors, such as a vision encoder
        each = min(each, SIXTEEN_BITS)
    found = {use: count * each for use, count in others.items()}
    return Counter(found | {use: float(count * SIXTEEN_BITS) for use, count in kept.items()})


def experts(shape: Shape, tokens: int) -> float:
    """The part of the experts that a pass of so many tokens reads, if each chooses by itself."""
    chosen = number(shape, "expert_used_count", 1) / number(shape, "expert_count", 1)
    return 1 - (1 - chosen) ** tokens


def cache(shape: Shape, key_bits: float, value_bits: float, tokens: int) -> float:
    """The bytes of so many tokens in the cache; a layer with a window has no more than fit."""
    pattern = shape.values.get("attention.sliding_window_pattern")
    total = 0.0
    for name, dimensions in shape.tensors.items():
        if name.endswith("attn_k.weight"):
            windowed = isinstance(pattern, list) and pattern[int(name.split(".")[1])]
            held = min(tokens, number(shape, "attention.sliding_window", 0)) if windowed else tokens
            values = shape.tensors.get(name.replace("attn_k", "attn_v"), dimensions)
            total += held * (dimensions[1] * key_bits + values[1] * value_bits) / 8
    return total


def number(shape: Shape, key: str, default: int) -> int:
    """A value of the model that is one number."""
    value = shape.values.get(key, default)
    return value if isinstance(value, int) else default


def _use(name: str, layers: int, output: str) -> Use:
    if name == output:
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "rows"
    experts = "_exps." in name
    if name.startswith("blk.") and int(name.split(".")[1]) >= layers:
        return "block experts" if experts else "block"
    return "experts" if experts else "layers"
