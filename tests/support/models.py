"""GGUF files with the shapes of models that people run, and holes for their weights.

Shapes of Qwen3.5 and Qwen3.6 27B and 35B-A3B: their config.json (text_config of Qwen3_5Config and
Qwen3_5MoeConfig); of Qwen3 0.6B: that of Qwen/Qwen3-0.6B.  Tensors by llama.cpp's
src/models/qwen35.cpp, qwen35moe.cpp and qwen3.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BITS = {"f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}
"""Bits of an element of a cache: q8_0 has 34 bytes for 32, q4_0 has 18 (ggml-common.h)."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Shape:
    """A model's figures.  ``interval``: one layer in so many has full attention, 1: all have."""

    architecture: str
    layers: int
    embedding: int
    heads: int
    heads_kv: int
    head: int
    feed_forward: int
    vocabulary: int
    context: int
    interval: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)

    def kv_bytes(self, context: int, kind_k: str, kind_v: str) -> float:
        """Layers with a cache x heads x size of a head x bytes of an element, for each token."""
        elements = self.layers // self.interval * self.heads_kv * self.head * context
        return elements * (BITS[kind_k] + BITS[kind_v]) / 8

    def state_bytes(self) -> int:
        """What recurrent layers keep of one sequence: of the convolution and of the delta net."""
        if self.interval == 1:
            return 0
        state, more = self.more["ssm.state_size"], self.more
        key, value = state * more["ssm.group_count"], state * more["ssm.time_step_rank"]
        floats = (more["ssm.conv_kernel"] - 1) * (2 * key + value) + value * state
        return (self.layers - self.layers // self.interval) * floats * 4


HYBRID = {"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16}
DENSE_27B = Shape(
    "qwen35",
    *(64, 5120, 24, 4, 256, 17408, 248320, 262144, 4),
    {**HYBRID, "ssm.inner_size": 6144, "ssm.time_step_rank": 48},
)
MOE_35B_A3B = Shape(
    "qwen35moe",
    *(40, 2048, 16, 2, 256, 512, 248320, 262144, 4),
    {
        **HYBRID,
        "ssm.inner_size": 4096,
        "ssm.time_step_rank": 32,
        "expert_count": 256,
        "expert_used_count": 8,
        "expert_feed_forward_length": 512,
        "expert_shared_feed_forward_length": 512,
    },
)
SMALL = Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960)
DRAFTER = Shape("qwen3", 4, 256, 4, 2, 64, 512, 151936, 40960)


def write(shape: Shape, file: Path, *, end: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE) -> Path:
    """Write a model: the header is real, the weights are a hole."""
    writer = gguf.GGUFWriter(file, shape.architecture, endianess=end)
    _describe(writer, shape)
    _tokens(writer, shape.vocabulary)
    size = 0
    for name, dimensions in _tensors(shape):
        small = len(dimensions) == 1 or "ssm_conv1d" in name
        kind = gguf.GGMLQuantizationType.F32 if small else gguf.GGMLQuantizationType.Q4_K
        elements, width = gguf.GGML_QUANT_SIZES[kind]
        count = int(np.prod(dimensions)) // elements * width
        shown = tuple(reversed(dimensions))  # ggml's first dimension is numpy's last
        writer.add_tensor_info(name, shown, np.dtype(np.float32), count, raw_dtype=kind)
        size += -(-count // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with file.open("r+b") as stream:
        header = -(-stream.seek(0, 2) // 32) * 32
        stream.truncate(header + size)
    return file


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"{shape.architecture} with holes")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads_kv)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    if shape.interval > 1:
        writer.add_rope_dimension_count(shape.head // 4)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_uint32(f"{shape.architecture}.full_attention_interval", shape.interval)
    for name, value in shape.more.items():
        writer.add_uint32(f"{shape.architecture}.{name}", value)


def _tokens(writer: gguf.GGUFWriter, count: int) -> None:
    """A vocabulary of GPT-2's kind: a character for each byte, then words, then special tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    tokens = [characters[byte] for byte in range(256)]
    tokens += ["he", "\u0120t", "\u0120the"]
    tokens += [f"\u0120word{number}" for number in range(count - len(tokens) - len(SPECIAL))]
    kinds = [int(gguf.TokenType.NORMAL)] * len(tokens) + [int(gguf.TokenType.CONTROL)] * 3
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*tokens, *SPECIAL])
    writer.add_token_types(kinds)
    writer.add_token_merges(["h e", "\u0120 t", "\u0120t he"])
    writer.add_eos_token_id(count - 1)
    writer.add_pad_token_id(count - 3)
    writer.add_add_bos_token(False)


def _tensors(shape: Shape) -> Shapes:
    """The names and shapes of all tensors; ggml's first dimension first."""
    width = shape.embedding
    yield "token_embd.weight", (width, shape.vocabulary)
    yield "output_norm.weight", (width,)
    yield "output.weight", (width, shape.vocabulary)
    for number in range(shape.layers):
        full = (number + 1) % shape.interval == 0
        layer = [("attn_norm.weight", (width,)), *(_attention(shape) if full else _linear(shape))]
        layer += [*(_experts(shape) if "expert_count" in shape.more else _dense(shape))]
        yield from ((f"blk.{number}.{name}", dimensions) for name, dimensions in layer)


def _attention(shape: Shape) -> Shapes:
    width, inner = shape.embedding, shape.heads * shape.head
    gate = 2 if shape.interval > 1 else 1  # Qwen3.5 gates the output
    yield "attn_q.weight", (width, inner * gate)
    yield "attn_k.weight", (width, shape.heads_kv * shape.head)
    yield "attn_v.weight", (width, shape.heads_kv * shape.head)
    yield "attn_output.weight", (inner, width)
    yield "attn_q_norm.weight", (shape.head,)
    yield "attn_k_norm.weight", (shape.head,)


def _linear(shape: Shape) -> Shapes:
    """A layer of gated delta net."""
    width, state, more = shape.embedding, shape.more["ssm.state_size"], shape.more
    key, value = state * more["ssm.group_count"], state * more["ssm.time_step_rank"]
    yield "attn_qkv.weight", (width, 2 * key + value)
    yield "attn_gate.weight", (width, value)
    yield "ssm_conv1d.weight", (more["ssm.conv_kernel"], 2 * key + value)
    yield "ssm_dt.bias", (more["ssm.time_step_rank"],)
    yield "ssm_a", (more["ssm.time_step_rank"],)
    yield "ssm_beta.weight", (width, more["ssm.time_step_rank"])
    yield "ssm_alpha.weight", (width, more["ssm.time_step_rank"])
    yield "ssm_norm.weight", (state,)
    yield "ssm_out.weight", (value, width)


def _dense(shape: Shape) -> Shapes:
    norm = "post_attention_norm" if shape.interval > 1 else "ffn_norm"
    yield f"{norm}.weight", (shape.embedding,)
    yield "ffn_gate.weight", (shape.embedding, shape.feed_forward)
    yield "ffn_up.weight", (shape.embedding, shape.feed_forward)
    yield "ffn_down.weight", (shape.feed_forward, shape.embedding)


def _experts(shape: Shape) -> Shapes:
    width, inner, count = shape.embedding, shape.feed_forward, shape.more["expert_count"]
    yield "post_attention_norm.weight", (width,)
    yield "ffn_gate_inp.weight", (width, count)
    yield "ffn_gate_exps.weight", (width, inner, count)
    yield "ffn_up_exps.weight", (width, inner, count)
    yield "ffn_down_exps.weight", (inner, width, count)
    yield "ffn_gate_inp_shexp.weight", (width,)
    yield "ffn_gate_shexp.weight", (width, inner)
    yield "ffn_up_shexp.weight", (width, inner)
    yield "ffn_down_shexp.weight", (inner, width)
