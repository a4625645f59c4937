"""The files that configure the simulator's libraries: the cards, and the image's device code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from builder.presets import cards
from builder.presets.cards import Card, Compute
from simulator.gguf import Header

NORMAL = 1  # gguf.TokenType
# A word with the mark of a space before it, as SentencePiece (U+2581) and GPT-2 (U+0120) have it.
WORD = re.compile("[\u2581\u0120]?[A-Za-z][a-z]*")
WANTED = 8


def files(
    found: Sequence[Card],
    model: Header | None,
    code: str,
    compute: Compute | None = None,
    *,
    samples: bool = True,
) -> dict[str, str]:
    """The configuration by file name; ``code`` is the image's ``ledger.code_table``.

    Where nothing is computed, the vocabulary of the served model (None: no model is served) and
    some of its printable tokens decide the logits that the engine reads back.  ``samples``: the
    engine may choose tokens on the card; the ids that it reads back are zeros.
    """
    text = cards.text(
        found,
        vocabulary=model.vocabulary if model else 0,
        tokens=printable(model) if model else (),
        compute=compute,
        samples=samples,
    )
    return {"cards": text, "code": code}


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
