"""The presets that run on each card: the answers of ``builder choose``, for every file of
``cards/``."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable
from dataclasses import asdict

from builder.presets import cards, compose, machine, model_files
from builder.presets.choose import Fitting
from builder.presets.known import Known
from builder.presets.schema import ModelFile, Preset
from builder.presets.service import OPTIONS_OF_PLACES, Run, service
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
    presets = {entry.name: entry.preset for entry in known.entries}
    root, found = known.question.catalog.root, []
    for name, card in cards.every(root).items():
        answer = known.choice(machine.named(root, [name]))
        models, best = answer.models, {each.preset for each in answer.recommended}
        fits = [
            _option(
                each,
                presets[each.preset],
                short_name=models[each.preset],
                recommended=each.preset in best,
                published=each.recipe in published,
            )
            for each in answer.fits
        ]
        excluded = [
            Refusal(each.preset, models[each.preset], presets[each.preset].model.name, each.why)
            for each in answer.excluded
        ]
        kind = (name, card.name, card.capability, card.memory)
        found.append(CardFact(*kind, tuple(fits), tuple(excluded)))
    return tuple(sorted(found, key=_place))


def _place(card: CardFact) -> tuple[int, int, int, str]:
    own = [each for each in card.fits if each.known in ("measured", "published")]
    return -len(own), -len(card.fits), -card.memory, card.card


def _option(
    found: Fitting, preset: Preset, *, short_name: str, recommended: bool, published: bool
) -> Option:
    context, figure, own = found.other_context, None, found.computed
    computed = Figure(own.tokens_per_second, own.interval) if own else None
    if found.measured is not None:
        figure = Figure(**asdict(found.measured))
    elif found.tokens_per_second is not None:
        figure = Figure(
            tokens_per_second=found.tokens_per_second,
            context=found.figure_context or None,
            card="" if found.on_such_cards else found.measured_on,
            cards=found.measured_cards,
        )
    # Models without a repository have to be named by the user.
    unknown = [place for place, file in _unnamed(preset).items() if file.repository is None]
    given = [word for place in unknown for word in (OPTIONS_OF_PLACES[place], "FILE")]
    words = [found.preset, *(["--context", str(context)] if context else []), *given]
    missing = _missing(preset, words, published=published)
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
        figure=figure or computed,
        computed=computed if figure and figure.card else None,
        not_computed="" if figure else found.not_computed,
        memory=found.memory.size if found.memory else None,
        memory_by=found.memory.by if found.memory else "",
        driver=found.driver,
        capabilities=found.capabilities,
        caveats=found.caveats,
        command=shlex.join([PROGRAM, "run", *words]),
        other_context=context,
        compose="" if missing else f"compose/{found.preset}{f'-{context}' if context else ''}.yaml",
        missing=missing,
        other_memory=found.other_memory.size if found.other_memory else None,
        least=found.least or None,
        filled=found.filled,
    )


def _unnamed(preset: Preset) -> dict[str, ModelFile]:
    """The models whose file the preset does not name: a file needs the Hub, or the user, first."""
    files = model_files.of_preset(preset)
    return {place: file for place, file in files.items() if not file.whole and file.file is None}


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


def compose_files(
    known: Known, images: Iterable[ImageFact], options: Iterable[Option]
) -> dict[str, str]:
    """The texts of the files that the options name, by their path."""
    presets = {entry.name: entry.preset for entry in known.entries}
    references = {each.recipe: f"{each.repository}@{each.digest}" for each in images}
    found = {}
    for path, option in sorted({each.compose: each for each in options if each.compose}.items()):
        preset = presets[option.preset]
        recipe = known.question.catalog.engine(preset.recipe).recipe
        files = model_files.mounted(model_files.of_preset(preset), MODELS, {})
        run = Run(option.preset, recipe, preset, option.other_context)
        found[path] = compose.document(service(run, references[preset.recipe], files))
    return found
