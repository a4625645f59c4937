"""What runs on each card: the answers of ``builder choose``, for every file of ``cards/``."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from builder.choose import machine, needs
from builder.choose.choice import Excluded, Fitting, Question, Receipts, by_standing, choose
from builder.exports import compose
from builder.presets import model_files
from builder.presets.catalog import PresetEntry
from builder.presets.service import Run, service
from builder.recipes.catalog import Catalog
from builder.records.trials import Trials
from builder.simulator import cards
from builder.simulator.cards import Card
from builder.site.facts import CardFact, ImageFact, Option, Refusal


def every_card(
    catalog: Catalog,
    entries: Sequence[PresetEntry],
    trials: Trials,
    receipts: Receipts,
    published: Collection[str] = (),
) -> tuple[CardFact, ...]:
    """The presets that run on each card, on as many of it as they need.

    ``published`` are the recipes whose images a registry has.  Raises ``RecipeError`` where a file
    of ``cards/`` is invalid.
    """
    known = {name: cards.load(catalog.root, name) for name in cards.names(catalog.root)}
    presets = {entry.name: entry for entry in entries}
    found = []
    for name, card in known.items():
        fits, excluded = _answers(catalog, entries, name, known, trials, receipts)
        found.append(
            CardFact(
                card=name,
                name=card.name,
                capability=card.capability,
                memory=card.memory,
                fits=tuple(
                    _option(each, presets[each.preset], published=each.recipe in published)
                    for each in fits
                ),
                excluded=tuple(_refusal(each, presets[each.preset]) for each in excluded),
            )
        )
    return tuple(sorted(found, key=lambda each: (-len(each.fits), -each.memory, each.card)))


def _answers(
    catalog: Catalog,
    entries: Sequence[PresetEntry],
    card: str,
    known: Mapping[str, Card],
    trials: Trials,
    receipts: Receipts,
) -> tuple[list[Fitting], list[Excluded]]:
    fits: list[Fitting] = []
    excluded: list[Excluded] = []
    for count in sorted({entry.preset.cards for entry in entries}):
        question = Question(
            machine.named(catalog.root, [card] * count),
            catalog,
            known,
            trials=lambda entry: needs.by_trial(entry, trials),
            receipts=receipts,
        )
        answer = choose([entry for entry in entries if entry.preset.cards == count], question)
        fits += answer.fits
        excluded += answer.excluded
    fits.sort(key=by_standing)
    return fits, excluded


def _option(found: Fitting, entry: PresetEntry, *, published: bool) -> Option:
    preset = entry.preset
    own = found.context in (0, preset.serve.context)
    context = None if own else found.context
    words = ["builder", "run", found.preset, *(["--context", str(context)] if context else [])]
    return Option(
        preset=found.preset,
        recipe=found.recipe,
        model=preset.model.name,
        cards=preset.cards,
        context=found.context,
        tokens_per_second=found.tokens_per_second,
        figure_context=found.figure_context or None,
        measured_on=found.measured_on,
        measured=found.measured,
        computed=found.computed,
        memory=found.memory.size if found.memory else None,
        memory_by=found.memory.by if found.memory else "",
        driver=found.driver,
        caveats=found.caveats,
        command=shlex.join(words),
        other_context=context,
        compose=compose_path(found.preset, context) if published else "",
    )


def _refusal(found: Excluded, entry: PresetEntry) -> Refusal:
    return Refusal(found.preset, entry.preset.model.name, entry.preset.cards, found.why)


MODELS = "./models"
"""The models directory, beside the file."""


def compose_path(preset: str, context: int | None) -> str:
    """The file of a preset; ``context`` where it is not the preset's own."""
    return f"compose/{preset}{f'-{context}' if context else ''}.yaml"


def compose_files(
    catalog: Catalog,
    entries: Iterable[PresetEntry],
    images: Iterable[ImageFact],
    options: Iterable[Option],
) -> dict[str, str]:
    """The texts of the files that the options name, by compose_path.

    A file of a model whose name the preset does not give has a name that stands for it.
    """
    presets = {entry.name: entry for entry in entries}
    references = {each.recipe: f"{each.repository}@{each.digest}" for each in images}
    wanted = {each.compose: each for each in options if each.compose}
    return {
        file: _document(catalog, presets[each.preset], each.other_context, references)
        for file, each in sorted(wanted.items())
    }


def _document(
    catalog: Catalog, entry: PresetEntry, context: int | None, references: Mapping[str, str]
) -> str:
    preset = entry.preset
    files = model_files.mounted(model_files.of_preset(preset), MODELS, {})
    run = Run(entry.name, catalog.engine(preset.recipe).recipe, preset, context)
    return compose.document(service(run, references[preset.recipe], files))
