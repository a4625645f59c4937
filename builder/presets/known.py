"""What is known of presets beside their files: trials, this machine's records, and receipts.

A record and a file of ``trials/`` are read as plain data: only the members that decide here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from builder.presets import cards
from builder.presets import catalog as presets
from builder.presets.catalog import PresetEntry, Presets
from builder.presets.choose import Choice, Question, choose
from builder.presets.machine import Machine
from builder.presets.schema import TRIALS, PresetUse, read_trials
from builder.recipes.catalog import Catalog

if TYPE_CHECKING:
    from builder.presets.receipts import ReceiptEntry


class _Check(BaseModel, strict=True):
    state: str


class _Verdict(BaseModel, strict=True):
    checks: tuple[_Check, ...]
    presets: Mapping[str, PresetUse]


class _Record(BaseModel, strict=True):
    platform: str
    digest: str
    created: str
    verdict: _Verdict


class _Trials(BaseModel, strict=True):
    created: str
    failed: Mapping[str, int] = {}
    presets: Mapping[str, PresetUse]


@dataclass(frozen=True, slots=True)
class Known:
    """Presets with the records and receipts of a moment."""

    entries: Sequence[PresetEntry]
    question: Question
    """For a machine without cards."""
    digests: Mapping[str, str]
    """The digest of the newest image that this machine verified, by recipe."""
    invalid: int
    """Receipts that do not count."""

    def choice(self, machine: Machine, context: int = 0) -> Choice:
        """The presets that run on a machine with at least so many tokens of context."""
        return choose(self.entries, replace(self.question, machine=machine, context=context))


def known(
    catalog: Catalog,
    entries: Sequence[PresetEntry],
    state: Path,
    recipes: Iterable[str] = (),
    *,
    receipts: Sequence[ReceiptEntry] | None = None,
) -> Known:
    """The facts about presets, and ``recipes``, in the repository and the state directory.

    ``receipts`` are checked already; None: the repository's receipts are checked now.  Raises
    ``RecipeError`` where a file of ``cards/`` or ``trials/`` is invalid.
    """
    measured, invalid = {}, 0
    if receipts or (receipts is None and any((catalog.root / "receipts").glob("*.json"))):
        from builder.presets.receipts import checked, of_presets  # slow to import

        if receipts is None:
            found = checked(catalog, datetime.now(UTC))
            receipts, invalid = found.entries, len(found.invalid)
        measured = of_presets(receipts, catalog, entries)
    trials, refused, digests = tried(catalog.root, state, entries, recipes)
    published = cards.known(catalog.root, {entry.preset.card for entry in entries})
    question = Question(
        Machine(()), catalog, published, trials=trials, receipts=measured, refused=refused
    )
    return Known(entries, question, digests, invalid)


def tried(
    root: Path, state: Path, entries: Sequence[PresetEntry], recipes: Iterable[str] = ()
) -> tuple[dict[str, PresetUse], dict[str, str], dict[str, str]]:
    """The trials of presets by name; by recipe, why its image was refused; and digests by recipe.

    This machine's record counts before the repository's file, which is for machines that never
    built the image, and both only for a preset that is as it was when it was tried.  Raises
    ``RecipeError`` where a file of ``trials/`` is invalid.
    """
    trials: dict[str, PresetUse] = {}
    refused, digests = {}, {}
    for recipe in dict.fromkeys([*recipes, *(entry.preset.recipe for entry in entries)]):
        file = Path(TRIALS) / f"{recipe}.json"
        kept, own = read_trials(root / file, _Trials), _verified(state, recipe)
        if own is not None:
            digests[recipe] = own.digest
        if kept and kept.failed and (own is None or own.created < kept.created):
            checks = " and ".join(f"{count} of {kind}" for kind, count in kept.failed.items())
            refused[recipe] = f"its image was refused: checks failed, {checks} ({file})"
        for entry in (each for each in entries if each.preset.recipe == recipe):
            for each in (own.verdict if own else None, kept):
                use = each.presets.get(entry.name) if each else None
                if use and use.identity == entry.preset.identity:
                    trials.setdefault(entry.name, use)
    return trials, refused, digests


def _verified(state: Path, recipe: str) -> _Record | None:
    """The newest record of an image whose checks all passed; a PC's, if there are several."""
    found = []
    for file in (state / "records" / recipe).glob("*.json"):
        with suppress(OSError, ValueError):
            kept = _Record.model_validate_json(file.read_bytes())
            states = {check.state for check in kept.verdict.checks}
            found += [kept] if states and not states & {"failed", "untried"} else []
    return max(found, key=lambda each: (each.platform == "linux/amd64", each.created), default=None)


def of_farm(root: Path) -> tuple[Presets, Catalog]:
    """The presets of the farm at ``root``, and the recipes that they and its receipts name.

    No other recipe is read.  Raises ``RecipeError`` where the farm has no recipes.
    """
    named = set()
    for file in (root / "receipts").glob("*.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):  # reported by ``known``
            named.add(str(json.loads(file.read_bytes())["image"]["recipe"]))
    return presets.with_recipes(root, named)
