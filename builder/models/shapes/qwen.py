"""Qwen3, Qwen3.5 and Qwen3.6: dense and mixture of experts, with and without the MTP block.

Tensors and keys: llama.cpp, ``src/models/qwen3.cpp``, ``qwen35.cpp``, ``qwen35moe.cpp`` and
``conversion/qwen.py``.  Qwen3.6 has the architecture of Qwen3.5.  The MTP block, called *nextn* in
GGUF, is one layer more: a file with it has 866 tensors at 27B, one without 851.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from builder.models.shapes.shape import (
    Shape,
    Tensors,
    Tokenizer,
    Value,
    block,
    gated,
    weights,
)

SECTIONS = (11, 11, 10, 0)  # mrope_section of every Qwen3.5; conversion/qwen.py adds the zero
INTERVAL = 4  # one layer in four has full attention: full_attention_interval
STATE, GROUPS, KERNEL = 128, 16, 4  # linear_key_head_dim, linear_num_key_heads, ..._conv_kernel_dim
ROUTER = {"ffn_gate_inp": "F32", "ssm_conv1d": "F32"}  # llama.cpp quantizes neither


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts; ``inner`` is the width of one, and of the shared one."""

    count: int
    used: int
    inner: int


@dataclass(frozen=True, slots=True)
class Qwen:
    """Figures of a config.json; ``value_heads`` is 0 where all layers have full attention."""

    layers: int
    embedding: int
    heads: int
    heads_kv: int
    head: int
    inner: int | Experts
    vocabulary: int
    context: int
    value_heads: int = 0
    tied: bool = False
    """Whether the output has the weights of the embedding."""
    predicted: int = 0
    """Layers of the MTP block."""


# config.json of Qwen/Qwen3-0.6B
QWEN3_06B = Qwen(28, 1024, 16, 8, 128, 3072, 151936, 40960, tied=True)
# text_config of Qwen/Qwen3.5-0.8B
QWEN35_08B = Qwen(24, 1024, 8, 2, 256, 3584, 248320, 262144, 16, tied=True)
# text_config of Qwen/Qwen3.6-27B; keys of unsloth's GGUF in the log of ggml-org/llama.cpp#23398
QWEN36_27B = Qwen(64, 5120, 24, 4, 256, 17408, 248320, 262144, 48)
# text_config of Qwen/Qwen3.6-35B-A3B; keys of unsloth's GGUF in the log of ggml-org/llama.cpp#23269
QWEN36_35B_A3B = Qwen(40, 2048, 16, 2, 256, Experts(256, 8, 512), 248320, 262144, 32)


def with_mtp(model: Qwen) -> Qwen:
    """The model with its MTP block: mtp_num_hidden_layers is 1 in each config.json."""
    return replace(model, predicted=1)


def shape(model: Qwen) -> Shape:
    """Its values and tensors."""
    hybrid, experts = bool(model.value_heads), isinstance(model.inner, Experts)
    return Shape(
        ("qwen35moe" if experts else "qwen35") if hybrid else "qwen3",
        {**_attention_values(model), **(_hybrid_values(model) if hybrid else {})},
        dict(_tensors(model)),
        Tokenizer("gpt2", model.vocabulary, "qwen35" if hybrid else "qwen2"),
        ROUTER,
    )


def _attention_values(model: Qwen) -> dict[str, Value]:
    inner = model.inner
    feed: dict[str, Value] = (
        {
            "expert_count": inner.count,
            "expert_used_count": inner.used,
            "expert_feed_forward_length": inner.inner,
            "expert_shared_feed_forward_length": inner.inner,
        }
        if isinstance(inner, Experts)
        else {"feed_forward_length": inner}
    )
    return {
        "block_count": model.layers + model.predicted,
        "context_length": model.context,
        "embedding_length": model.embedding,
        "attention.head_count": model.heads,
        "attention.head_count_kv": model.heads_kv,
        "attention.key_length": model.head,
        "attention.value_length": model.head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7 if model.value_heads else 1e6,
        **feed,
    }


def _hybrid_values(model: Qwen) -> dict[str, Value]:
    found: dict[str, Value] = {
        "rope.dimension_count": model.head // 4,  # partial_rotary_factor 0.25
        "rope.dimension_sections": SECTIONS,
        "full_attention_interval": INTERVAL,
        "ssm.conv_kernel": KERNEL,
        "ssm.state_size": STATE,
        "ssm.group_count": GROUPS,
        "ssm.time_step_rank": model.value_heads,
        "ssm.inner_size": model.value_heads * STATE,
    }
    return found | ({"nextn_predict_layers": model.predicted} if model.predicted else {})


def _tensors(model: Qwen) -> Tensors:
    width = model.embedding
    yield from weights(("token_embd", (width, model.vocabulary)), ("output_norm", (width,)))
    if not model.tied:
        yield from weights(("output", (width, model.vocabulary)))
    for number in range(model.layers + model.predicted):
        yield from block(number, _layer(model, number))


def _layer(model: Qwen, number: int) -> Tensors:
    width, hybrid = model.embedding, bool(model.value_heads)
    extra = number >= model.layers
    full = extra or not hybrid or (number + 1) % INTERVAL == 0
    yield from weights(("attn_norm", (width,)))
    yield from _attention(model) if full else _linear(model)
    yield from weights(("post_attention_norm" if hybrid else "ffn_norm", (width,)))
    inner = model.inner
    yield from _experts(width, inner) if isinstance(inner, Experts) else gated(width, inner)
    if extra:
        yield from weights(
            ("nextn.eh_proj", (2 * width, width)),
            ("nextn.enorm", (width,)),
            ("nextn.hnorm", (width,)),
            ("nextn.shared_head_norm", (width,)),
        )


def _attention(model: Qwen) -> Tensors:
    width, inner, kv = model.embedding, model.heads * model.head, model.heads_kv * model.head
    return weights(
        ("attn_q", (width, inner * (2 if model.value_heads else 1))),  # Qwen3.5 gates the output
        ("attn_k", (width, kv)),
        ("attn_v", (width, kv)),
        ("attn_output", (inner, width)),
        ("attn_q_norm", (model.head,)),
        ("attn_k_norm", (model.head,)),
    )


def _linear(model: Qwen) -> Tensors:
    """A layer of gated delta net."""
    width, heads = model.embedding, model.value_heads
    key, value = STATE * GROUPS, STATE * heads
    yield from weights(
        ("attn_qkv", (width, 2 * key + value)),
        ("attn_gate", (width, value)),
        ("ssm_conv1d", (KERNEL, 2 * key + value)),
        ("ssm_beta", (width, heads)),
        ("ssm_alpha", (width, heads)),
        ("ssm_norm", (STATE,)),
        ("ssm_out", (value, width)),
    )
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads,)


def _experts(width: int, experts: Experts) -> Tensors:
    inner, count = experts.inner, experts.count
    return weights(
        ("ffn_gate_inp", (width, count)),
        ("ffn_gate_exps", (width, inner, count)),
        ("ffn_up_exps", (width, inner, count)),
        ("ffn_down_exps", (inner, width, count)),
        ("ffn_gate_inp_shexp", (width,)),
        ("ffn_gate_shexp", (width, inner)),
        ("ffn_up_shexp", (width, inner)),
        ("ffn_down_shexp", (inner, width)),
    )
