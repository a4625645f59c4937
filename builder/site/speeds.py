"""The published figures of each preset, the fastest first, with the facts of its runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from builder.presets.catalog import PresetEntry
from builder.presets.figures import PresetUse, Result
from builder.presets.schema import Preset
from builder.receipts.of_preset import interval
from builder.receipts.schema import Receipt
from builder.site.facts import ImageFact, Mark, Measurement, PublishedFigure, Speed


def speeds(
    entries: Sequence[PresetEntry],
    images: Mapping[str, ImageFact],
    trials: Mapping[str, PresetUse],
) -> tuple[Speed, ...]:
    """The published figures of each preset that has any; ``images`` are by recipe."""
    found = [
        _speed(entry, tuple(_marks(entry, images, trials)))
        for entry in entries
        if entry.preset.result
    ]
    return tuple(sorted(found, key=lambda each: (-each.figures[0].tokens_per_second, each.preset)))


def measurements(receipts: Iterable[Receipt]) -> tuple[Measurement, ...]:
    """Every figure of the receipts, the fastest first."""
    found = [
        Measurement(
            recipe=receipt.image.recipe,
            digest=receipt.image.digest,
            hardware=receipt.hardware,
            driver=receipt.driver,
            model=receipt.model.name,
            model_sha256=receipt.model.sha256,
            context=point.context,
            tokens_per_second=round(point.mean, 2),
            interval=interval(point),
            runs=tuple(round(run.tokens_per_second, 2) for run in point.runs),
            by=receipt.by or "",
            created=receipt.created.isoformat(timespec="seconds"),
        )
        for receipt in receipts
        for point in receipt.measured
    ]
    return tuple(sorted(found, key=lambda each: (-each.tokens_per_second, each.recipe)))


def _marks(
    entry: PresetEntry, images: Mapping[str, ImageFact], trials: Mapping[str, PresetUse]
) -> Iterator[Mark]:
    image = images.get(entry.preset.recipe)
    if image is not None and image.digest and image.checks:
        yield "compiled"
    if entry.name in trials:
        yield "run without a GPU"
    if entry.preset.source is not None:
        yield "run on a card"


def _speed(entry: PresetEntry, marks: tuple[Mark, ...]) -> Speed:
    preset, source = entry.preset, entry.preset.source
    return Speed(
        preset=entry.name,
        recipe=preset.recipe,
        model=preset.model.name,
        card=preset.card,
        cards=preset.cards,
        figures=tuple(_figures(preset)),
        by=(source.title or source.url or "") if source else "",
        url=(source.url or "") if source else "",
        published=(source.published or "") if source else "",
        marks=marks,
    )


def _figures(preset: Preset) -> Iterator[PublishedFigure]:
    """The figures: runs as the preset says first, and of these the largest context first."""
    order = sorted(preset.result, key=lambda each: (not each.of_preset, -preset.context_of(each)))
    for result in order:
        figures = result.tokens_per_second
        differs = [shlex.join(result.arguments), result.differs or "", result.task or ""]
        yield PublishedFigure(
            context=preset.context_of(result) or None,
            tokens_per_second=round(figures.middle, 2),
            least=figures.least,
            most=figures.most,
            runs=figures.count or len(figures.runs) or None,
            acceptance=_acceptance(result),
            baseline=result.baseline,
            differs="; ".join(filter(None, differs)),
        )


def _acceptance(result: Result) -> float | None:
    if result.acceptance is not None:
        return round(result.acceptance.middle, 1)
    share = result.accepted_share
    return round(share, 1) if share is not None else None
