"""Facts about presets beside their files: receipts, and trials of this machine's images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from builder.choose import choice
from builder.choose.choice import Choice, Question
from builder.choose.machine import Machine
from builder.presets import catalog as presets
from builder.presets.catalog import PresetEntry, Presets
from builder.recipes.catalog import Catalog
from builder.records import record, trials
from builder.records.record import Record
from builder.records.trials import Trials
from builder.simulator import cards
from builder.simulator.cards import Card


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
        return choice.choose(self.entries, self.question(machine, context))

    def question(self, machine: Machine, context: int = 0) -> Question:
        """What is known of presets, for a machine."""
        return Question(
            machine,
            self.catalog,
            self._cards(),
            context,
            self.trials.of,
            self.receipts,
            self.trials.refused,
        )

    def _cards(self) -> Mapping[str, Card]:
        """The cards that presets were published for, as far as they have a file."""
        return cards.known(self.catalog.root, {entry.preset.card for entry in self.entries})


def known(catalog: Catalog, entries: Sequence[PresetEntry], state: Path) -> Known:
    """The facts about presets in the repository and the state directory.

    Raises ``RecipeError`` where a file of ``cards/`` or ``trials/`` is invalid.
    """
    figures, invalid = _receipts(catalog)
    names = {entry.preset.recipe for entry in entries}
    found = {name: record.newest_good(state, name) for name in names}
    records = {name: kept for name, kept in found.items() if kept is not None}
    memory = trials.known(catalog.root, names, records)
    return Known(catalog, entries, records, memory, figures, invalid)


def of_farm(root: Path) -> tuple[Presets, Catalog]:
    """The presets of the farm at ``root``, and the recipes that they and its receipts name.

    No other recipe is read.  Raises ``RecipeError`` where the farm has no recipes.
    """
    named = set()
    for file in (root / "receipts").glob("*.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):  # reported by _receipts
            named.add(str(json.loads(file.read_bytes())["image"]["recipe"]))
    return presets.with_recipes(root, named)


def _receipts(catalog: Catalog) -> tuple[choice.Receipts, int]:
    """The figures of receipts, and the number of invalid ones."""
    if not any((catalog.root / "receipts").glob("*.json")):
        return lambda *_: None, 0
    from builder.receipts.check import checked  # slow to import
    from builder.receipts.of_preset import lookup

    receipts = checked(catalog, datetime.now(UTC))
    return lookup(receipts.entries, catalog), len(receipts.invalid)
