"""Facts about presets beside their files: receipts, and trials of this machine's images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.choose import choice, needs
from builder.choose.choice import Choice, Question
from builder.choose.machine import Machine
from builder.presets.catalog import PresetEntry
from builder.receipts.check import checked
from builder.receipts.of_preset import lookup
from builder.recipes.catalog import Catalog
from builder.records import record, trials
from builder.records.record import Record
from builder.records.trials import Trials
from builder.simulator import cards


@dataclass(frozen=True, slots=True)
class Known:
    """Presets with the records and receipts of a moment."""

    catalog: Catalog
    entries: Sequence[PresetEntry]
    records: Mapping[str, Record]
    """The record of the newest verified image, by recipe."""
    trials: Trials
    receipts: choice.Receipts
    invalid: int
    """Receipts that do not count."""

    def choice(self, machine: Machine, context: int = 0) -> Choice:
        """The presets that run on a machine with at least so many tokens of context."""
        question = Question(
            machine,
            self.catalog,
            cards.every(self.catalog.root),
            context,
            lambda entry: needs.by_trial(entry, self.trials),
            self.receipts,
        )
        return choice.choose(self.entries, question)


def known(catalog: Catalog, entries: Sequence[PresetEntry], state: Path) -> Known:
    """The facts about presets in the repository and the state directory.

    Raises ``RecipeError`` where a file of ``cards/`` or ``trials/`` is invalid.
    """
    receipts = checked(catalog, datetime.now(UTC))
    names = {entry.preset.recipe for entry in entries}
    found = {name: record.newest_good(state, name) for name in names}
    records = {name: kept for name, kept in found.items() if kept is not None}
    figures = lookup(receipts.entries, catalog)
    memory = trials.known(catalog.root, names, records)
    return Known(catalog, entries, records, memory, figures, len(receipts.invalid))
