"""The result of a trial of one context, and all trials of a model on cards; as JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from builder.checks.fill import FILLED
from simulator.figures import mib
from simulator.work import WorkPath


class _Part(BaseModel):
    """The base class; sizes are bytes."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class CardPeak(_Part):
    """The most memory that was in use on one card."""

    name: str
    memory: int
    context: int
    """The CUDA context's own memory, which is part of the peak."""
    peak: int
    by_kind: dict[str, int] = {}
    """The memory by kind, when it was at its peak."""


class Refused(_Part):
    """An allocation for which a card had no room."""

    requested: int
    free: int
    card: str
    function: str
    """The function of the engine that asked for it; FILE+0xOFFSET where no symbol names it."""
    kind: str
    """Its purpose: weights, KV cache, compute, drafter, projector or other."""

    def __str__(self) -> str:
        return f"{mib(self.requested)} for {self.kind} by {self.function}, {mib(self.free)} free"


class FitTrial(_Part):
    """An engine's start with one context, and a long request."""

    context: int
    fits: bool
    why: str = ""
    """Why it does not fit."""
    cards: tuple[CardPeak, ...] = ()
    by_kind: dict[str, int] = {}
    refused: Refused | None = None
    """The last allocation that a card refused, where the context does not fit."""
    retried: int = 0
    """Refused allocations after which the engine freed memory, asked again, and answered."""
    estimate: int | None = None
    """The largest context by the engine's own estimate, in tokens, where this one does not fit; 0:
    none fits; None: the engine makes none."""
    stated: str = ""
    """What the engine's log states of its memory; empty for llama.cpp's, whose allocations tell."""
    filled: int = 0
    """Tokens of the long prompts that were answered."""
    launches: int = 0
    paths: tuple[WorkPath, ...] = ()
    seconds: float = 0.0

    @property
    def needed(self) -> int | None:
        """The least memory of the card that refused an allocation; None where none did."""
        if self.refused is None:
            return None
        memory = next(card.memory for card in self.cards if card.name == self.refused.card)
        return memory - self.refused.free + self.refused.requested

    @property
    def is_filled(self) -> bool:
        """Whether the long prompts filled the context, but for a part that no engine allocates
        for."""
        return self.filled >= FILLED * self.context

    @property
    def peak(self) -> int:
        """The peak of all cards together."""
        return sum(card.peak for card in self.cards)

    @property
    def share(self) -> float:
        """The share that is in use of the card that is fullest."""
        return max((card.peak / card.memory for card in self.cards), default=0.0)


class LoadedFile(_Part):
    """A file that the engine loads; split ones count as one."""

    name: str
    size: int
    read: int
    """Bytes of it that were read: its header."""
    architecture: str
    context: int | None


class FitCard(_Part):
    """A card, and its figures without a source."""

    name: str
    memory: int
    unverified: dict[str, str]


class Fit(_Part):
    """All trials of a model on cards, by context."""

    recipe: str
    image: str
    digest: str
    model: LoadedFile
    draft: LoadedFile | None = None
    projector: LoadedFile | None = None
    cards: tuple[FitCard, ...]
    options: tuple[str, ...] = ()
    """The engine's arguments after the recipe's."""
    room: tuple[str, ...] = ()
    """The engine's options by which a longer context fits into its KV cache."""
    trials: tuple[FitTrial, ...]
    largest: int | None = None
    step: int | None
    seconds: float = 0.0
