"""The files that configure the simulator's libraries: the cards, and the image's device code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.simulator import cards
from builder.simulator.cards import Card

MOST_TOKENS = 16
NORMAL = 1  # gguf, constants.py: TokenType.NORMAL
SPACES = "\u2581\u0120"  # what SentencePiece and byte-level BPE write for a space


def files(found: Sequence[Card], model: Path, code: str) -> dict[str, str]:
    """The configuration by file name; ``code`` is the table of the image's device code.

    ``model`` is a GGUF: its size of vocabulary and some of its printable tokens decide what is read
    back as logits.
    """
    vocabulary, tokens = vocabulary_of(model)
    return {"cards": cards.text(found, vocabulary=vocabulary, tokens=tokens), "code": code}


def vocabulary_of(model: Path) -> tuple[int, list[int]]:
    """The number of a model's tokens, and the ids of some that are words of letters."""
    from gguf import GGUFReader

    reader = GGUFReader(model)
    texts = reader.get_field("tokenizer.ggml.tokens")
    if texts is None:
        return 0, []
    kinds = reader.get_field("tokenizer.ggml.token_type")
    found = []
    for number, index in enumerate(texts.data):
        text = bytes(texts.parts[index]).decode(errors="replace").strip(SPACES)
        normal = kinds is None or int(kinds.parts[kinds.data[number]][0]) == NORMAL
        if normal and text.isascii() and text.isalpha():
            found.append(number)
            if len(found) == MOST_TOKENS:
                break
    return len(texts.data), found
