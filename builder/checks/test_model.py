"""The test model: a llama model with random weights, half a megabyte, generated when needed.

Written with llama.cpp's ``gguf`` package.  Its text is meaningless but always printable: byte and
control tokens have zero rows in ``output.weight``, so that they are never chosen.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "tiny"
EMBEDDING, HEADS, LAYERS, FEED_FORWARD, CONTEXT = 64, 2, 2, 128, 512


def write(path: Path, seed: int = 1) -> None:
    """Write the model; the same seed gives the same bytes."""
    import gguf
    import numpy as np

    kind = gguf.TokenType
    letters = ["\u2581", *map(chr, range(33, 127))]  # SentencePiece writes a space as U+2581
    tokens = [b"<unk>", b"<s>", b"</s>"]
    tokens += [f"<0x{byte:02X}>".encode() for byte in range(256)]
    tokens += [text.encode() for text in letters]
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL]
    kinds += [kind.BYTE] * 256 + [kind.NORMAL] * len(letters)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(NAME)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([int(each) for each in kinds])
    for name, tensor in _tensors(np.random.default_rng(seed), len(tokens)).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.chmod(0o644)  # the image's own user reads it


def _tensors(generator: np.random.Generator, vocabulary: int) -> dict[str, NDArray[np.float32]]:
    import numpy as np

    def weights(*shape: int) -> NDArray[np.float32]:
        return (generator.standard_normal(shape) * 0.1).astype(np.float32)

    output = weights(vocabulary, EMBEDDING)
    output[: 3 + 256] = 0
    tensors = {
        "token_embd.weight": weights(vocabulary, EMBEDDING),
        "output_norm.weight": np.ones(EMBEDDING, dtype=np.float32),
        "output.weight": output,
    }
    for layer in (f"blk.{number}" for number in range(LAYERS)):
        tensors[f"{layer}.attn_norm.weight"] = np.ones(EMBEDDING, dtype=np.float32)
        tensors[f"{layer}.ffn_norm.weight"] = np.ones(EMBEDDING, dtype=np.float32)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"{layer}.{part}.weight"] = weights(EMBEDDING, EMBEDDING)
        tensors[f"{layer}.ffn_gate.weight"] = weights(FEED_FORWARD, EMBEDDING)
        tensors[f"{layer}.ffn_up.weight"] = weights(FEED_FORWARD, EMBEDDING)
        tensors[f"{layer}.ffn_down.weight"] = weights(EMBEDDING, FEED_FORWARD)
    return tensors


# The test model of engines that load folders of the Hugging Face Hub.
#
# It has a configuration, a tokenizer of bytes, and weights that are zeros: a hole in the file.
# Two layers of Qwen3: grouped attention, norms of queries and keys, gated units, positions by
# rotation.

FOLDER_NAME = "tiny"
WEIGHTS = "model.safetensors"
FOLDER_CONTEXT = 2048  # tokens
END = "<|endoftext|>"
CHAT = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)
# A head of 128 is one that every attention backend of vLLM takes.
FOLDER_LAYERS, FOLDER_EMBEDDING, FOLDER_FEED_FORWARD, FOLDER_HEADS, KV_HEADS, HEAD = (
    2,
    1024,
    4096,
    8,
    4,
    128,
)
VOCABULARY = 512
"""More than the tokenizer has: models round it up, too."""


def write_folder(folder: Path) -> None:
    """Make the folder, with the files that every user may read."""
    folder.mkdir()
    folder.chmod(0o755)  # the image's own user reads it
    files = {
        "config.json": _configuration(),
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "model_max_length": FOLDER_CONTEXT,
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
    width, queries, keys = FOLDER_EMBEDDING, FOLDER_HEADS * HEAD, KV_HEADS * HEAD
    layer = {
        "input_layernorm": [width],
        "self_attn.q_proj": [queries, width],
        "self_attn.k_proj": [keys, width],
        "self_attn.v_proj": [keys, width],
        "self_attn.o_proj": [width, queries],
        "self_attn.q_norm": [HEAD],
        "self_attn.k_norm": [HEAD],
        "post_attention_layernorm": [width],
        "mlp.gate_proj": [FOLDER_FEED_FORWARD, width],
        "mlp.up_proj": [FOLDER_FEED_FORWARD, width],
        "mlp.down_proj": [width, FOLDER_FEED_FORWARD],
    }
    whole = {"embed_tokens": [VOCABULARY, width], "norm": [width]}
    for number in range(FOLDER_LAYERS):
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
        "num_hidden_layers": FOLDER_LAYERS,
        "hidden_size": FOLDER_EMBEDDING,
        "intermediate_size": FOLDER_FEED_FORWARD,
        "num_attention_heads": FOLDER_HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": FOLDER_CONTEXT,
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
