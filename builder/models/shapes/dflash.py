"""DFlash drafters, as llama.cpp reads them and as its forks do.

They have no vocabulary's tensors of their own: the target's embedding and output serve them, and
five of the target's layers are their input.
"""

from __future__ import annotations

from dataclasses import dataclass

from builder.models.shapes.shape import Shape, Tensors, Tokenizer, Value, block, gated, weights

BLOCK = 16  # tokens that are drafted at once: block_size


@dataclass(frozen=True, slots=True)
class DFlash:
    """Figures of a config.json."""

    layers: int
    embedding: int
    heads: int
    heads_kv: int
    head: int
    inner: int
    vocabulary: int
    context: int
    window: int | None
    """Tokens that a layer with a sliding window sees: all layers but the last have one, or none."""
    sources: tuple[int, ...]
    """target_layer_ids: the layers of the target whose output is the input."""
    mask: int = 248070


# config.json of z-lab/Qwen3.6-27B-DFlash; spiritbuun's GGUF of it has the same figures
QWEN36_27B = DFlash(
    *(5, 5120, 32, 8, 128, 17408, 248320, 262144, 2048),
    sources=(1, 16, 31, 46, 61),
)
# config.json of z-lab/Qwen3.6-35B-A3B-DFlash in April 2026; that of June has other layers
QWEN36_35B_A3B = DFlash(
    *(8, 2048, 32, 4, 128, 6144, 248320, 262144, None),
    sources=(1, 10, 19, 28, 37),
)


def shape(model: DFlash) -> Shape:
    """Its values and tensors for llama.cpp: ``src/models/dflash.cpp``, ``conversion/qwen.py``."""
    values = _values(model)
    values |= {
        "block_size": BLOCK,
        "target_layers": [source + 1 for source in model.sources],  # as conversion/qwen.py counts
        "rope.dimension_sections": (model.head // 2, 0, 0, 0),  # the target has M-RoPE
    }
    return Shape("dflash", values, dict(_tensors(model, "fc", "enc.output_norm")), _words(model))


def forks_shape(model: DFlash) -> Shape:
    """As BeeLlama and buun-llama-cpp read it, and spiritbuun published it.

    Sources: the log in spiritbuun/buun-llama-cpp#23, and the conversions from the one format to the
    other that other engines have.  No engine that reads it was tried.
    """
    values = _values(model)
    values |= {
        "rope.dimension_count": model.head,
        "dflash.block_size": BLOCK,
        "dflash.mask_token_id": model.mask,
        "dflash.target_layer_ids": model.sources,
        "dflash.n_target_features": len(model.sources) * model.embedding,
    }
    tensors = dict(_tensors(model, "dflash_fc", "dflash_hidden_norm"))
    return Shape("dflash-draft", values, tensors, _words(model))


def _words(model: DFlash) -> Tokenizer:
    return Tokenizer("gpt2", model.vocabulary, "qwen35", model.mask)


def _values(model: DFlash) -> dict[str, Value]:
    values: dict[str, Value] = {
        "block_count": model.layers,
        "context_length": model.context,
        "embedding_length": model.embedding,
        "feed_forward_length": model.inner,
        "attention.head_count": model.heads,
        "attention.head_count_kv": model.heads_kv,
        "attention.key_length": model.head,
        "attention.value_length": model.head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
    }
    if model.window is not None:
        values["attention.sliding_window"] = model.window
        values["attention.sliding_window_pattern"] = [*[True] * (model.layers - 1), False]
    return values


def _tensors(model: DFlash, fusion: str, norm: str) -> Tensors:
    width = model.embedding
    yield from weights(
        (fusion, (len(model.sources) * width, width)), (norm, (width,)), ("output_norm", (width,))
    )
    after = "post_attention_norm" if fusion == "dflash_fc" else "ffn_norm"
    for number in range(model.layers):
        yield from block(number, _layer(model, after))


def _layer(model: DFlash, after: str) -> Tensors:
    width, inner, kv = model.embedding, model.heads * model.head, model.heads_kv * model.head
    yield from weights(
        ("attn_norm", (width,)),
        ("attn_q", (width, inner)),
        ("attn_k", (width, kv)),
        ("attn_v", (width, kv)),
        ("attn_output", (inner, width)),
        ("attn_q_norm", (model.head,)),
        ("attn_k_norm", (model.head,)),
        (after, (width,)),
    )
    yield from gated(width, model.inner)
