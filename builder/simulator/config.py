"""The files that configure the simulator's libraries: the cards, and the image's device code."""

from __future__ import annotations

from collections.abc import Sequence

from builder.models import vocabulary
from builder.models.gguf import Header
from builder.simulator import cards
from builder.simulator.cards import Card, Compute


def files(
    found: Sequence[Card], model: Header | None, code: str, compute: Compute | None = None
) -> dict[str, str]:
    """The configuration by file name; ``code`` is the image's ``kernels.code_table``.

    Where nothing is computed, the vocabulary of the model that is served (None: none is) and some
    of its printable tokens decide what is read back as logits.
    """
    if model is None:
        return {"cards": cards.text(found, compute=compute), "code": code}
    size, tokens = vocabulary.size(model), vocabulary.printable(model)
    text = cards.text(found, vocabulary=size, tokens=tokens, compute=compute)
    return {"cards": text, "code": code}
