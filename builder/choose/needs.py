"""The requirements of a preset: code for the card, a driver, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from builder.choose.machine import HostCard
from builder.families import entrypoint
from builder.presets.figures import Memory, Result
from builder.presets.schema import Preset
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
from builder.smoke.verdict import PresetUse

STEP = 8192  # tokens of a context that is found between two trials


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory that a run takes on all its cards."""

    size: int
    """Bytes."""
    by: Literal["trial", "source"]
    """The trial on a simulated card, or the source of the preset."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Bytes by kind, where they are known."""
    own: int = 0
    """Bytes of the CUDA contexts of the card of the trial, part of ``size``."""

    def on(self, cards: Sequence[HostCard]) -> int:
        """Bytes on these cards, whose CUDA contexts may be larger or smaller."""
        contexts = sum(card.context for card in cards)
        return self.size - self.own + contexts if self.own and contexts else self.size


def of_context(
    preset: Preset, context: int, result: Result | None, trial: PresetUse | None
) -> MemoryNeed | None:
    """The memory that a preset takes with a context; None: not known.

    A trial comes first.  For another context than the preset's, a figure of the source for exactly
    that context comes before it.
    """
    other = context != (preset.serve.context or context)
    stated = result.memory if result is not None else None
    if trial is not None and not (other and stated is not None and stated.whole is not None):
        return tried(trial, context)
    return published_memory(preset, context, result)


def published_memory(preset: Preset, context: int, result: Result | None) -> MemoryNeed | None:
    """The memory that the source states for a context, or for a larger one; else None."""
    stated = result.memory if result is not None else None
    if stated is not None and stated.whole is not None:
        return _need(stated, stated.whole)
    own = preset.memory
    within = context <= (preset.serve.context or context)
    if own is not None and own.whole is not None and within:
        return _need(own, own.whole)
    return None


def tried(use: PresetUse, context: int) -> MemoryNeed:
    """The memory with a context: on the line through the trials of the preset's context and of a
    smaller one, where both are known; else as with the preset's."""
    least = use.smaller
    if least is None or context == use.context:
        return MemoryNeed(use.peak, "trial", use.by_kind, use.own)
    share = max(0.0, (context - least.context) / (use.context - least.context))
    peak = _between(least.peak, use.peak, share)
    kinds = {
        kind: _between(least.by_kind.get(kind, 0), size, share)
        for kind, size in use.by_kind.items()
    }
    return MemoryNeed(peak, "trial", kinds, use.own)


def context_between(use: PresetUse, cards: Sequence[HostCard], wanted: int = 0) -> int:
    """The context between both trials that has room on the cards: tokens, 0 for none.

    It is ``wanted``; without one, the largest multiple of ``STEP``.
    """
    if use.smaller is None:
        return 0
    least, last = use.smaller.context, use.context // STEP * STEP
    tries = (max(wanted, least),) if wanted else range(last, least - 1, -STEP)
    there = sum(card.memory for card in cards)
    return next((each for each in tries if tried(use, each).on(cards) <= there), 0)


def _between(least: int, most: int, share: float) -> int:
    return ceil(least + share * (most - least))


def _need(memory: Memory, whole: int) -> MemoryNeed:
    kinds = {name: memory.bytes_of(size) for name, size in memory.kinds.items()}
    return MemoryNeed(whole, "source", kinds)


def oldest_driver(recipe: Recipe, catalog: Catalog) -> str:
    """The oldest driver that a recipe's image runs with; empty where it is not known."""
    bases = (catalog.base(name).recipe for name in catalog.chain(recipe.base))
    return entrypoint.oldest_driver(recipe, next((base.cuda for base in bases if base.cuda), None))
