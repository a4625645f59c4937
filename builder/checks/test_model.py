"""The test model: a llama model with random weights, half a megabyte, generated when needed.

Written with llama.cpp's ``gguf`` package.  Its text is meaningless but always printable: byte and
control tokens have zero rows in ``output.weight``, so that they are never chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
