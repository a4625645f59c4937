"""The test model of engines that load folders of the Hugging Face Hub.

It has a configuration, a tokenizer of bytes, and weights that are zeros: a hole in the file.  Two
layers of Qwen3: grouped attention, norms of queries and keys, gated units, positions by rotation.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

NAME = "tiny"
WEIGHTS = "model.safetensors"
CONTEXT = 2048  # tokens
END = "<|endoftext|>"
CHAT = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)
# A head of 128 is one that every attention backend of vLLM takes.
LAYERS, EMBEDDING, FEED_FORWARD, HEADS, KV_HEADS, HEAD = 2, 1024, 4096, 8, 4, 128
VOCABULARY = 512
"""More than the tokenizer has: models round it up, too."""


def write(folder: Path) -> None:
    """Make the folder, with the files that every user may read."""
    folder.mkdir()
    folder.chmod(0o755)  # the image's own user reads it
    files = {
        "config.json": _configuration(),
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "model_max_length": CONTEXT,
            "chat_template": CHAT,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), "utf-8")
    write_weights(folder / WEIGHTS, _shapes())
    for file in folder.iterdir():
        file.chmod(0o644)


def write_weights(file: Path, shapes: Mapping[str, Sequence[int]]) -> None:
    """Tensors in BF16, in the format of safetensors (README, "Format"); all are zeros, a hole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # Transformers refuses others
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()  # Lucebox's parser takes no spaces
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)


def _shapes() -> dict[str, list[int]]:
    """The tensors, with the names of Transformers' ``Qwen3ForCausalLM``."""
    width, queries, keys = EMBEDDING, HEADS * HEAD, KV_HEADS * HEAD
    layer = {
        "input_layernorm": [width],
        "self_attn.q_proj": [queries, width],
        "self_attn.k_proj": [keys, width],
        "self_attn.v_proj": [keys, width],
        "self_attn.o_proj": [width, queries],
        "self_attn.q_norm": [HEAD],
        "self_attn.k_norm": [HEAD],
        "post_attention_layernorm": [width],
        "mlp.gate_proj": [FEED_FORWARD, width],
        "mlp.up_proj": [FEED_FORWARD, width],
        "mlp.down_proj": [width, FEED_FORWARD],
    }
    whole = {"embed_tokens": [VOCABULARY, width], "norm": [width]}
    for number in range(LAYERS):
        whole |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes = {f"model.{name}.weight": shape for name, shape in whole.items()}
    return {**shapes, "lm_head.weight": [VOCABULARY, width]}


def _configuration() -> dict[str, Any]:
    """The configuration, with the names of Transformers' ``Qwen3Config``."""
    end = len(byte_letters())
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": LAYERS,
        "hidden_size": EMBEDDING,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCABULARY,
        "eos_token_id": end,
    }


def _tokenizer() -> dict[str, Any]:
    """A token for each byte, in the format of the library ``tokenizers``.

    The first one is ``!``, as in GPT-2's and Qwen's vocabularies: zeros, which a card that
    computes nothing gives for sampled tokens, are printable text.
    """
    letters = byte_letters()
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(letters), "content": END, **flags, "special": True}],
        "normalizer": None,
        "pre_tokenizer": step,
        "post_processor": None,
        "decoder": step,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "vocab": {letter: number for number, letter in enumerate(letters)},
            "merges": [],
        },
    }


def byte_letters() -> list[str]:
    """The letters that stand for the bytes, in the order of GPT-2's vocabulary: those that print
    stand for themselves, the rest follows from U+0100 on (openai/gpt-2, src/encoder.py,
    ``bytes_to_unicode``)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = 256 - len(shown)
    return [*map(chr, shown), *(chr(0x100 + number) for number in range(rest))]
