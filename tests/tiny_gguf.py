"""A llama model of random weights, small enough to make in a test and large enough to serve."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

EMBEDDING, HEADS, LAYERS, FEED_FORWARD, CONTEXT = 64, 4, 2, 128, 512


def _vocabulary() -> tuple[list[bytes], list[float], list[int]]:
    kind = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>"]
    kinds = [int(kind.UNKNOWN), int(kind.CONTROL), int(kind.CONTROL)]
    tokens += [f"<0x{byte:02X}>".encode() for byte in range(256)]
    kinds += [int(kind.BYTE)] * 256
    # SentencePiece writes a space as U+2581.
    printable = ["\u2581"] + [chr(code) for code in range(33, 127)]
    tokens += [text.encode() for text in printable]
    kinds += [int(kind.NORMAL)] * len(printable)
    return tokens, [0.0] * len(tokens), kinds


def write(path: Path, seed: int = 1) -> None:
    """Write the model: the same bytes for the same seed."""
    generator = np.random.default_rng(seed)
    tokens, scores, kinds = _vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
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
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)

    def weights(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) * 0.1).astype(np.float32)

    output = weights(len(tokens), EMBEDDING)
    # Neither control nor byte tokens may win: half a UTF-8 sequence is no answer.
    output[: 3 + 256] = 0
    writer.add_tensor("token_embd.weight", weights(len(tokens), EMBEDDING))
    writer.add_tensor("output_norm.weight", np.ones(EMBEDDING, dtype=np.float32))
    writer.add_tensor("output.weight", output)
    for layer in range(LAYERS):
        name = f"blk.{layer}"
        writer.add_tensor(f"{name}.attn_norm.weight", np.ones(EMBEDDING, dtype=np.float32))
        writer.add_tensor(f"{name}.ffn_norm.weight", np.ones(EMBEDDING, dtype=np.float32))
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{name}.{part}.weight", weights(EMBEDDING, EMBEDDING))
        writer.add_tensor(f"{name}.ffn_gate.weight", weights(FEED_FORWARD, EMBEDDING))
        writer.add_tensor(f"{name}.ffn_up.weight", weights(FEED_FORWARD, EMBEDDING))
        writer.add_tensor(f"{name}.ffn_down.weight", weights(EMBEDDING, FEED_FORWARD))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
