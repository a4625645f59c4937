"""Gemma 4: E2B, E4B and 26B-A4B, and the *assistants* that draft for them.

Tensors and keys: llama.cpp, ``src/models/gemma4.cpp``, ``gemma4-assistant.cpp`` and
``conversion/gemma.py``.  Layers with a sliding window and such with full attention take turns; they
have heads of different sizes.  The last layers of E2B and E4B use the caches of earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from builder.models.shapes.shape import Shape, Tensors, Tokenizer, Value, block, gated, weights

VOCABULARY = 262144
HEAD, HEAD_FULL = 256, 512  # head_dim, global_head_dim: the same in all config.json
CENTROIDS = 2048  # num_centroids
FIXED = {"ffn_gate_inp": "F32", "per_layer_model_proj": "BF16", ".scale": "F32", "ordering": "I32"}


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts beside the dense network."""

    count: int
    used: int
    inner: int


@dataclass(frozen=True, slots=True)
class Gemma4:
    """Figures of a text_config; ``interval``: one layer in so many has full attention."""

    layers: int
    embedding: int
    heads: int
    heads_kv: int
    inner: int
    context: int
    window: int
    interval: int
    heads_kv_full: int
    shared: int = 0
    """Layers at the end that use the caches of others: num_kv_shared_layers."""
    wide: bool = False
    """Whether their feed-forward networks are twice as wide: use_double_wide_mlp."""
    per_layer: int = 0
    """Width of the embeddings that each layer has of its own: hidden_size_per_layer_input."""
    values_are_keys: bool = False
    """Whether layers with full attention have no values of their own: attention_k_eq_v."""
    experts: Experts | None = None

    def full(self, number: int) -> bool:
        """Whether a layer has full attention."""
        return (number + 1) % self.interval == 0

    def kv_heads(self, number: int) -> int:
        """The heads of a layer's cache."""
        return self.heads_kv_full if self.full(number) else self.heads_kv

    def width(self, number: int) -> int:
        """The width of a layer's feed-forward network."""
        twice = self.wide and number >= self.layers - self.shared
        return self.inner * 2 if twice else self.inner


# text_config of google/gemma-4-E2B-it; unsloth's GGUF has 601 tensors and 4.65 billion parameters
E2B = Gemma4(35, 1536, 8, 1, 6144, 131072, 512, 5, 1, shared=20, wide=True, per_layer=256)
# text_config of google/gemma-4-E4B-it; keys of a GGUF in the log of ollama/ollama#18123
E4B = Gemma4(42, 2560, 8, 2, 10240, 131072, 512, 6, 2, shared=18, per_layer=256)
# text_config of google/gemma-4-26B-A4B-it; unsloth's GGUF has 658 tensors and 25.23 billion
A4B = Gemma4(
    *(30, 2816, 16, 8, 2112, 262144, 1024, 6, 2),
    values_are_keys=True,
    experts=Experts(128, 8, 704),
)
# text_config of google/gemma-4-*-it-assistant; all layers use the target's cache
E2B_ASSISTANT = Gemma4(4, 256, 4, 1, 2048, 131072, 512, 4, 1, shared=4)
E4B_ASSISTANT = Gemma4(4, 256, 4, 2, 2048, 131072, 512, 4, 2, shared=4)
A4B_ASSISTANT = Gemma4(4, 1024, 16, 8, 8192, 262144, 1024, 4, 2, shared=4, values_are_keys=True)


def shape(model: Gemma4) -> Shape:
    """Its values and tensors."""
    values = _values(model) | {"final_logit_softcapping": 30.0}
    if (experts := model.experts) is not None:
        values |= {
            "expert_count": experts.count,
            "expert_used_count": experts.used,
            "expert_feed_forward_length": experts.inner,
        }
    return Shape("gemma4", values, dict(_tensors(model)), Tokenizer("gemma4", VOCABULARY), FIXED)


def assistant(model: Gemma4, target: Gemma4) -> Shape:
    """A drafter, as llama.cpp reads it."""
    values = _values(model)
    values |= {"embedding_length_out": target.embedding, "nextn_predict_layers": model.layers}
    tensors = dict(_assistant_tensors(model, target, "nextn"))
    return Shape("gemma4-assistant", values, tensors, Tokenizer("gemma4", VOCABULARY), FIXED)


def atomic_assistant(model: Gemma4, target: Gemma4) -> Shape:
    """A drafter, as AtomicChat published it for its fork of llama.cpp.

    Source: a log of that fork with gemma-4-E2B-it-assistant.F16.gguf, of 51 tensors.  The drafter
    of 26B-A4B has no centroids (use_ordered_embeddings is false); none of it was tried.
    """
    ordered = model.embedding < 1024  # use_ordered_embeddings: of E2B and E4B
    values = _values(model)
    values |= {
        "n_embd_backbone": target.embedding,
        "use_ordered_embeddings": ordered,
        "attention.k_eq_v": model.values_are_keys,
        "requires_target_arch": "gemma4",
    }
    tensors = dict(_assistant_tensors(model, target, "mtp"))
    if ordered:
        values |= {"n_centroids": CENTROIDS, "centroid_top_k": 32}
        tensors |= {
            "mtp.centroids.weight": (model.embedding, CENTROIDS),
            "mtp.token_ordering.weight": (VOCABULARY,),
        }
    return Shape("gemma4_assistant", values, tensors, Tokenizer("gemma4", VOCABULARY), FIXED)


def _values(model: Gemma4) -> dict[str, Value]:
    numbers = range(model.layers)
    one = model.heads_kv == model.heads_kv_full
    return {
        "block_count": model.layers,
        "context_length": model.context,
        "embedding_length": model.embedding,
        "embedding_length_per_layer_input": model.per_layer,
        "feed_forward_length": [model.width(n) for n in numbers] if model.wide else model.inner,
        "attention.head_count": model.heads,
        "attention.head_count_kv": model.heads_kv if one else [model.kv_heads(n) for n in numbers],
        "attention.key_length": HEAD_FULL,
        "attention.value_length": HEAD_FULL,
        "attention.key_length_swa": HEAD,
        "attention.value_length_swa": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": model.window,
        "attention.sliding_window_pattern": [not model.full(n) for n in numbers],
        "attention.shared_kv_layers": model.shared,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": HEAD_FULL,
        "rope.dimension_count_swa": HEAD,
    }


def _tensors(model: Gemma4) -> Tensors:
    width, each = model.embedding, model.per_layer
    yield from weights(
        ("token_embd", (width, VOCABULARY)),
        ("output_norm", (width,)),
        ("rope_freqs", (HEAD_FULL // 2,)),
    )
    if each:
        yield from weights(
            ("per_layer_token_embd", (each * model.layers, VOCABULARY)),
            ("per_layer_model_proj", (width, each * model.layers)),
            ("per_layer_proj_norm", (each,)),
        )
    for number in range(model.layers):
        yield from block(number, _layer(model, number))


def _layer(model: Gemma4, number: int) -> Tensors:
    """A layer; those that use others' caches have keys and values in published files, too."""
    width, head = model.embedding, HEAD_FULL if model.full(number) else HEAD
    kv = model.kv_heads(number) * head
    yield from _common(model, number)
    yield from weights(("attn_k", (width, kv)), ("attn_k_norm", (head,)))
    if not (model.values_are_keys and model.full(number)):
        yield from weights(("attn_v", (width, kv)))
    if model.per_layer:
        yield from weights(
            ("inp_gate", (width, model.per_layer)),
            ("proj", (model.per_layer, width)),
            ("post_norm", (width,)),
        )
    if (experts := model.experts) is not None:
        yield from _experts(width, experts)


def _common(model: Gemma4, number: int) -> Tensors:
    """What a layer of a model and one of an assistant have."""
    width, head = model.embedding, HEAD_FULL if model.full(number) else HEAD
    yield from weights(
        ("attn_norm", (width,)),
        ("attn_q", (width, model.heads * head)),
        ("attn_output", (model.heads * head, width)),
        ("attn_q_norm", (head,)),
        ("post_attention_norm", (width,)),
        ("layer_output_scale", (1,)),
        ("ffn_norm", (width,)),
        ("post_ffw_norm", (width,)),
    )
    yield from gated(width, model.width(number))


def _experts(width: int, experts: Experts) -> Tensors:
    inner, count = experts.inner, experts.count
    yield from weights(
        ("ffn_gate_inp", (width, count)),
        ("ffn_gate_up_exps", (width, 2 * inner, count)),
        ("ffn_down_exps", (inner, width, count)),
        ("pre_ffw_norm_2", (width,)),
        ("post_ffw_norm_1", (width,)),
        ("post_ffw_norm_2", (width,)),
    )
    yield "ffn_gate_inp.scale", (width,)
    yield "ffn_down_exps.scale", (count,)


def _assistant_tensors(model: Gemma4, target: Gemma4, prefix: str) -> Tensors:
    width, backbone = model.embedding, target.embedding
    yield from weights(
        ("token_embd", (width, VOCABULARY)),
        ("output_norm", (width,)),
        ("rope_freqs", (HEAD_FULL // 2,)),
        (f"{prefix}.pre_projection", (2 * backbone, width)),
        (f"{prefix}.post_projection", (width, backbone)),
    )
    for number in range(model.layers):
        yield from block(number, _common(model, number))
