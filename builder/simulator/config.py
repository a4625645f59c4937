"""The files that configure the simulator's libraries: the cards, and the image's device code."""

from __future__ import annotations

from collections.abc import Sequence

from builder.models import vocabulary
from builder.models.gguf import Header
from builder.simulator import cards
from builder.simulator.cards import Card


def files(found: Sequence[Card], model: Header, code: str) -> dict[str, str]:
    """The configuration by file name; ``code`` is the image's ``kernels.code_table``.

    The model's vocabulary and some of its printable tokens decide what is read back as logits.
    """
    size, tokens = vocabulary.size(model), vocabulary.printable(model)
    return {"cards": cards.text(found, vocabulary=size, tokens=tokens), "code": code}
