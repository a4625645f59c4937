"""The receipts of a preset: the same image, models and options, on the same cards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from builder import families
from builder.choose.choice import Measured, Receipts
from builder.choose.machine import HostCard, is_listed_as
from builder.presets import command, model_files
from builder.presets import schema as presets
from builder.presets.catalog import PresetEntry
from builder.presets.schema import Preset
from builder.receipts import schema
from builder.receipts.catalog import ReceiptEntry
from builder.receipts.schema import Receipt
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
from builder.servers.series import mean_interval

OptionValues = dict[str, tuple[str, ...]]
"""Options by their long names, with their values."""


def lookup(entries: Sequence[ReceiptEntry], catalog: Catalog) -> Receipts:
    """The figures of the receipts for ``choose``.

    The newest receipt counts: its figure for the requested context, else for its largest context.
    """

    def found(preset: PresetEntry, cards: Sequence[HostCard], context: int) -> Measured | None:
        recipe = catalog.engine(preset.preset.recipe).recipe
        own = [
            each
            for each in entries
            if _on(each.receipt, cards) and is_run_of(each.receipt, preset.preset, recipe)
        ]
        newest = max(own, key=lambda each: each.receipt.created, default=None)
        return _measured(newest, context) if newest is not None else None

    return found


def is_run_of(receipt: Receipt, preset: Preset, recipe: Recipe) -> bool:
    """Whether a receipt is of a preset's image, models and options.

    A receipt has neither variables nor a projector: presets with them have no receipts.
    """
    if receipt.image.recipe != recipe.name or preset.serve.environment or preset.mmproj:
        return False
    if not is_file(preset.model, receipt.model) or not _same_draft(preset, receipt):
        return False
    own, wanted = _own_options(recipe), _options(preset.serve.arguments, recipe)
    return _options(receipt.arguments, recipe) == {**own, **wanted}


def _same_draft(preset: Preset, receipt: Receipt) -> bool:
    if preset.drafter is None or receipt.draft is None:
        return preset.drafter is None and receipt.draft is None
    return is_file(preset.drafter, receipt.draft)


def is_file(wanted: presets.ModelFile, measured: schema.ReceiptModel) -> bool:
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


def _on(receipt: Receipt, cards: Sequence[HostCard]) -> bool:
    there = list(cards)
    for each in receipt.cards:
        same = (card for card in there if is_listed_as(card, each.name, each.memory))
        card = next(same, None)
        if card is None:
            return False
        there.remove(card)
    return not there


def interval(point: schema.ReceiptFigures) -> tuple[float, float] | None:
    """The tokens per second of the mean with 95 % confidence, rounded; None for one run."""
    found = mean_interval([run.tokens_per_second for run in point.runs])
    return (max(round(found[0], 2), 0.0), round(found[1], 2)) if found is not None else None


def _measured(entry: ReceiptEntry, context: int) -> Measured:
    point = max(entry.receipt.measured, key=lambda each: (each.context == context, each.context))
    return Measured(
        tokens_per_second=round(point.mean, 2),
        interval=interval(point),
        runs=len(point.runs),
        context=point.context,
        by=entry.receipt.by or "",
        receipt=entry.name,
    )


def _own_options(recipe: Recipe) -> OptionValues:
    """The options that a benchmark of the recipe adds by itself on a GPU."""
    serve = families.serve_of(recipe)
    return _options([*serve.arguments, *serve.gpu], recipe) if serve else {}


def _options(words: Sequence[str], recipe: Recipe) -> OptionValues:
    """The options, except models and context; the last of several counts."""
    places = {command.option_of(group[0]) for group in command.known_options(recipe).values()}
    return {name: values for name, values in _named(words) if name not in places}


def _named(words: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for option, *values in command.groups(words):
        _, equals, value = option.partition("=")
        name = command.option_of(option)
        yield name or option, ((value,) if equals and name else ()) + tuple(values)
