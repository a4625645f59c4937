"""What a preset needs of a machine: code for the card, a driver, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from builder.choose.machine import HostCard
from builder.families import entrypoint
from builder.presets.catalog import PresetEntry
from builder.presets.figures import Memory, Result
from builder.presets.schema import Preset
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
from builder.records.trials import Trials


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
    preset: Preset, context: int, result: Result | None, trial: MemoryNeed | None
) -> MemoryNeed | None:
    """The memory that a preset takes with a context; None: not known.

    ``trial`` is of the preset's own context: for a smaller one, a figure of the source for exactly
    that one comes first.
    """
    smaller = context < (preset.serve.context or context)
    stated = result.memory if result is not None else None
    if trial is not None and not (smaller and stated is not None and stated.whole is not None):
        return trial
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


def by_trial(entry: PresetEntry, trials: Trials) -> MemoryNeed | None:
    """The memory by a trial, where the preset is still the one that was tried."""
    use = trials.of(entry)
    return MemoryNeed(use.peak, "trial", use.by_kind, use.own) if use is not None else None


def _need(memory: Memory, whole: int) -> MemoryNeed:
    kinds = {name: memory.bytes_of(size) for name, size in memory.kinds.items()}
    return MemoryNeed(whole, "source", kinds)


def oldest_driver(recipe: Recipe, catalog: Catalog) -> str:
    """The oldest driver that a recipe's image runs with; empty where it is not known."""
    bases = (catalog.base(name).recipe for name in catalog.chain(recipe.base))
    version = next((base.cuda for base in bases if base.cuda), "0")
    major = int(version.partition(".")[0])
    return recipe.cuda.driver or entrypoint.OLDEST_DRIVERS.get(major, "")
