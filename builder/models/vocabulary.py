"""The vocabulary of a model: how many tokens, and which of them print."""

from __future__ import annotations

import re

from builder.models.gguf import Header

NORMAL = 1  # gguf.TokenType
# A word with the mark of a space before it, as SentencePiece (U+2581) and GPT-2 (U+0120) have it.
WORD = re.compile("[\u2581\u0120]?[A-Za-z][a-z]*")
WANTED = 8


def size(header: Header) -> int:
    """The number of tokens; 0 where the file has no tokenizer."""
    tokens = header.array("tokenizer.ggml.tokens")
    return tokens.count if tokens else header.of_architecture("vocab_size") or 0


def printable(header: Header, wanted: int = WANTED) -> tuple[int, ...]:
    """Ids of tokens that are plain words, so that a text of them prints; there may be none."""
    tokens = header.array("tokenizer.ggml.tokens")
    kinds = header.array("tokenizer.ggml.token_type")
    if tokens is None:
        return ()
    kept = kinds.first if kinds else (NORMAL,) * len(tokens.first)
    found = [
        number
        for number, (token, kind) in enumerate(zip(tokens.first, kept, strict=False))
        if kind == NORMAL and isinstance(token, str) and WORD.fullmatch(token)
    ]
    return tuple(found[:wanted])
