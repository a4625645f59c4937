"""The receipts of a preset: the same image, models and options, on the same cards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from builder.checks.series import mean_interval
from builder.engines import families
from builder.presets import command, model_files
from builder.presets.catalog import PresetEntry
from builder.presets.choose import Measured, ReceiptFigure
from builder.presets.receipts import Receipt, ReceiptFigures, ReceiptModel
from builder.presets.receipts_catalog import ReceiptEntry
from builder.presets.schema import ModelFile, Preset
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe


def of_presets(
    entries: Sequence[ReceiptEntry], catalog: Catalog, presets: Sequence[PresetEntry]
) -> dict[str, list[Measured]]:
    """The receipts that are runs of each preset, the newest first, by the preset's name."""
    newest = sorted(entries, key=lambda each: each.receipt.created, reverse=True)
    return {
        preset.name: [
            _measured(each)
            for each in newest
            if each.receipt.image.recipe == preset.preset.recipe
            and is_run_of(each.receipt, preset.preset, catalog.engine(preset.preset.recipe).recipe)
        ]
        for preset in presets
    }


def is_run_of(receipt: Receipt, preset: Preset, recipe: Recipe) -> bool:
    """Whether a receipt is of a preset's image, models and options.

    A receipt has neither variables nor a projector: presets with them have no receipts.
    """
    if receipt.image.recipe != recipe.name or preset.serve.environment or preset.mmproj:
        return False
    pairs: list[tuple[ModelFile, ReceiptModel]] = [(preset.model, receipt.model)]
    if preset.drafter is not None and receipt.draft is not None:
        pairs.append((preset.drafter, receipt.draft))
    elif preset.drafter is not None or receipt.draft is not None:
        return False
    if not all(is_file(*pair) for pair in pairs):
        return False
    serve = families.serve_of(recipe)
    own = [*serve.arguments, *serve.gpu] if serve else []  # what a benchmark on a GPU adds
    wanted = _options(own, recipe) | _options(preset.serve.arguments, recipe)
    return _options(receipt.arguments, recipe) == wanted


def is_file(wanted: ModelFile, measured: ReceiptModel) -> bool:
    """Whether a file is the model of a preset: by sha256, else by its name, and size if known.

    Where a preset has only a quantization, the file's name must begin with the repository's name
    and contain the quantization.
    """
    if wanted.sha256 is not None:
        return wanted.sha256 == measured.sha256
    if wanted.file is not None:
        same = PurePosixPath(wanted.file).name == measured.name
        return same and wanted.size in {None, measured.size}
    if wanted.repository is None or wanted.quantization is None:
        return False
    model = wanted.repository.partition("/")[2].casefold().removesuffix("-gguf")
    named = measured.name.casefold().startswith(model)
    return named and bool(model_files.chosen(wanted, [measured.name]))


def interval(point: ReceiptFigures) -> tuple[float, float] | None:
    """The tokens per second of the mean with 95 % confidence, rounded; None for one run."""
    found = mean_interval([run.tokens_per_second for run in point.runs])
    return (max(round(found[0], 2), 0.0), round(found[1], 2)) if found is not None else None


def _measured(entry: ReceiptEntry) -> Measured:
    figures = [
        ReceiptFigure(
            tokens_per_second=round(point.mean, 2),
            interval=interval(point),
            runs=len(point.runs),
            context=point.context,
            by=entry.receipt.by or "",
            receipt=entry.name,
        )
        for point in entry.receipt.measured
    ]
    cards = tuple((card.name, card.memory) for card in entry.receipt.cards)
    return Measured(cards, tuple(figures))


def _options(words: Sequence[str], recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """The values of the options, except models and context; the last of several counts."""
    places = {command.option_of(group[0]) for group in command.known_options(recipe).values()}
    found = {}
    for option, *values in command.groups(words):
        _, equals, value = option.partition("=")
        name = command.option_of(option)
        if name not in places:
            found[name or option] = ((value,) if equals and name else ()) + tuple(values)
    return found
