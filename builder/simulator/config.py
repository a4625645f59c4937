"""The files that configure the simulator's libraries: the cards, and the image's device code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.errors import UntriedError
from builder.kernels import code_table as table
from builder.kernels import ledger
from builder.kernels.selection import Capability
from builder.models import vocabulary
from builder.models.gguf import Header
from builder.simulator import cards
from builder.simulator.cards import Card
from builder.tools.elf import MalformedElf


def files(found: Sequence[Card], model: Header, code: str) -> dict[str, str]:
    """The configuration by file name; ``code`` is the table of the image's device code.

    The model's vocabulary and some of its printable tokens decide what is read back as logits.
    """
    size, tokens = vocabulary.size(model), vocabulary.printable(model)
    return {"cards": cards.text(found, vocabulary=size, tokens=tokens), "code": code}


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
            raise UntriedError(
                f"the device code of {path} cannot be read",
                str(error),
                "build the image anew: `builder build RECIPE --rebuild`",
            ) from error
    return table.code_table(found)
