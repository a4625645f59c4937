"""The presets that run on each card: the answers of ``builder choose``, for every file of
``cards/``."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from builder.choose import machine
from builder.choose.choice import Excluded, Fitting
from builder.exports import compose
from builder.presets import model_files
from builder.presets.catalog import PresetEntry
from builder.presets.schema import ModelFile, Preset
from builder.presets.service import OPTIONS_OF_PLACES, Run, service
from builder.receipts.known import Known
from builder.recipes.catalog import Catalog
from builder.simulator import cards
from builder.site.facts import CardFact, Figure, ImageFact, NextStep, Option, Refusal

PROGRAM = "./farm"
"""Starts ``builder`` in a checkout, which the first page says how to get."""
MODELS = "./models"
"""The models directory, beside the file."""


def every_card(known: Known, published: Collection[str] = ()) -> tuple[CardFact, ...]:
    """The presets that run on one of each card, and why the others do not.

    Cards with most figures of their own come first, then cards with most presets that run.
    ``published`` are the recipes whose images a registry has.  Raises ``RecipeError`` where a file
    of ``cards/`` is invalid.
    """
    answers = _Answers(known, {entry.name: entry for entry in known.entries}, published)
    found = [answers.on(name, card) for name, card in cards.every(known.catalog.root).items()]
    return tuple(sorted(found, key=_place))


def _place(card: CardFact) -> tuple[int, int, int, str]:
    own = [each for each in card.fits if each.known in ("measured", "published")]
    return -len(own), -len(card.fits), -card.memory, card.card


@dataclass(frozen=True, slots=True)
class _Answers:
    known: Known
    presets: Mapping[str, PresetEntry]
    published: Collection[str]

    def on(self, name: str, card: cards.Card) -> CardFact:
        answer = self.known.choice(machine.named(self.known.catalog.root, [name]))
        best = {each.preset for each in answer.recommended}
        return CardFact(
            card=name,
            name=card.name,
            capability=card.capability,
            memory=card.memory,
            fits=tuple(
                self._option(each, answer.models[each.preset], each.preset in best)
                for each in answer.fits
            ),
            excluded=tuple(
                self._refusal(each, answer.models[each.preset]) for each in answer.excluded
            ),
        )

    def _option(self, found: Fitting, short_name: str, recommended: bool) -> Option:
        preset = self.presets[found.preset].preset
        context = found.other_context
        words = [found.preset, *(["--context", str(context)] if context else []), *_given(preset)]
        figure = _figure(found)
        missing = _missing(preset, words, published=found.recipe in self.published)
        return Option(
            preset=found.preset,
            short_name=short_name,
            recommended=recommended,
            recipe=found.recipe,
            model=preset.model.name,
            quantization=found.quantization,
            download=found.download or None,
            context=found.context,
            needs_file=not found.downloadable,
            known=found.standing.name.lower(),
            figure=figure,
            computed=_beside(found, figure),
            not_computed="" if figure else found.not_computed,
            memory=found.memory.size if found.memory else None,
            memory_by=found.memory.by if found.memory else "",
            driver=found.driver,
            capabilities=found.capabilities,
            caveats=found.caveats,
            command=shlex.join([PROGRAM, "run", *words]),
            other_context=context,
            compose="" if missing else compose_path(found.preset, context),
            missing=missing,
            other_memory=found.other_memory.size if found.other_memory else None,
            least=found.least or None,
            filled=found.filled,
        )

    def _refusal(self, found: Excluded, short_name: str) -> Refusal:
        model = self.presets[found.preset].preset.model.name
        return Refusal(found.preset, short_name, model, found.why)


def _figure(found: Fitting) -> Figure | None:
    """The speed that decides the preset's standing."""
    if found.measured is not None:
        own = found.measured
        return Figure(
            tokens_per_second=own.tokens_per_second,
            interval=own.interval,
            context=own.context,
            runs=own.runs,
            by=own.by,
            receipt=own.receipt,
        )
    if found.tokens_per_second is not None:
        return Figure(
            tokens_per_second=found.tokens_per_second,
            context=found.figure_context or None,
            card="" if found.on_such_cards else found.measured_on,
            cards=found.measured_cards,
        )
    return _computed(found)


def _computed(found: Fitting) -> Figure | None:
    own = found.computed
    return Figure(own.tokens_per_second, own.interval) if own is not None else None


def _beside(found: Fitting, figure: Figure | None) -> Figure | None:
    """The computed speed beside a figure of another card."""
    return _computed(found) if figure is not None and figure.card else None


def _unnamed(preset: Preset) -> dict[str, ModelFile]:
    """The models whose file the preset does not name: a file needs the Hub, or the user, first."""
    files = model_files.of_preset(preset)
    return {place: file for place, file in files.items() if not file.whole and file.file is None}


def _given(preset: Preset) -> list[str]:
    """The options for models without a repository, which the user has to name."""
    unknown = [place for place, file in _unnamed(preset).items() if file.repository is None]
    return [word for place in unknown for word in (OPTIONS_OF_PLACES[place], "FILE")]


def _missing(preset: Preset, words: list[str], *, published: bool) -> tuple[NextStep, ...]:
    """The steps before a file for Docker Compose can be written, and the command that writes it.

    ``words`` name the run.  Empty where nothing is missing: the site has the file.
    """
    steps = []
    if not published:
        why = "The image is not published"
        steps.append(NextStep(why, shlex.join([PROGRAM, "build", preset.recipe])))
    for file in _unnamed(preset).values():
        command = model_files.download(file, MODELS, [])
        lacks = "The file" if command else "No repository"
        steps.append(
            NextStep(f"{lacks} of {file.shown} is {'not ' if command else ''}known", command)
        )
    if steps:
        command = shlex.join([PROGRAM, "export", *words, "--format", "compose"])
        steps.append(NextStep("Then the file can be written", f"{command} --output ~/llm"))
    return tuple(steps)


def compose_path(preset: str, context: int | None) -> str:
    """The file of a preset; ``context`` where it is not the preset's own."""
    return f"compose/{preset}{f'-{context}' if context else ''}.yaml"


def compose_files(
    known: Known, images: Iterable[ImageFact], options: Iterable[Option]
) -> dict[str, str]:
    """The texts of the files that the options name, by compose_path."""
    presets = {entry.name: entry for entry in known.entries}
    references = {each.recipe: f"{each.repository}@{each.digest}" for each in images}
    wanted = {each.compose: each for each in options if each.compose}
    return {
        path: _document(known.catalog, presets[each.preset], each.other_context, references)
        for path, each in sorted(wanted.items())
    }


def _document(
    catalog: Catalog, entry: PresetEntry, context: int | None, references: Mapping[str, str]
) -> str:
    preset = entry.preset
    files = model_files.mounted(model_files.of_preset(preset), MODELS, {})
    run = Run(entry.name, catalog.engine(preset.recipe).recipe, preset, context)
    return compose.document(service(run, references[preset.recipe], files))
