"""The files that configure the simulator's libraries: the cards, and the image's device code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.errors import UntriedError
from builder.kernels import code_table as table
from builder.kernels import ledger
from builder.kernels.selection import Capability
from builder.simulator import cards
from builder.simulator.cards import Card
from builder.tools.elf import MalformedElf

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


def code_table(copies: Mapping[str, Path], card: Card) -> str:
    """The device code that the card finds in files of an image; ``copies`` are theirs, by path.

    Raises ``UntriedError`` where a file is damaged.
    """
    capability = Capability.parse(card.capability)
    found = {}
    for path, copy in copies.items():
        try:
            with copy.open("rb") as stream:
                found[path] = list(ledger.read(stream, capability))
        except MalformedElf as error:
            raise UntriedError(f"the device code of {path} cannot be read", str(error)) from error
    return table.code_table(found)


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
