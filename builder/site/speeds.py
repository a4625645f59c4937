"""The published figures of each preset, the fastest first, with the facts of its runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from builder.presets.catalog import PresetEntry
from builder.presets.figures import PresetUse
from builder.presets.of_preset import interval
from builder.presets.receipts import Receipt
from builder.presets.schema import Preset
from builder.site.facts import ImageFact, Mark, Measurement, PublishedFigure, Speed


def speeds(
    entries: Sequence[PresetEntry],
    images: Mapping[str, ImageFact],
    trials: Mapping[str, PresetUse],
) -> tuple[Speed, ...]:
    """The published figures of each preset that has any; ``images`` are by recipe."""
    found = []
    for entry in entries:
        preset, source = entry.preset, entry.preset.source
        image = images.get(preset.recipe)
        marks: dict[Mark, bool] = {
            "compiled": image is not None and bool(image.digest and image.checks),
            "run without a GPU": entry.name in trials,
            "run on a card": source is not None,
        }
        speed = Speed(
            preset=entry.name,
            recipe=preset.recipe,
            model=preset.model.name,
            card=preset.card,
            cards=preset.cards,
            figures=tuple(_figures(preset)),
            by=(source.title or source.url or "") if source else "",
            url=(source.url or "") if source else "",
            published=(source.published or "") if source else "",
            marks=tuple(mark for mark, known in marks.items() if known),
        )
        found += [speed] if speed.figures else []
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


def _figures(preset: Preset) -> Iterator[PublishedFigure]:
    """The figures: runs as the preset says first, and of these the largest context first."""
    order = sorted(preset.result, key=lambda each: (not each.of_preset, -preset.context_of(each)))
    for result in order:
        figures = result.tokens_per_second
        accepted = result.acceptance.middle if result.acceptance else result.accepted_share
        differs = [shlex.join(result.arguments), result.differs or "", result.task or ""]
        yield PublishedFigure(
            context=preset.context_of(result) or None,
            tokens_per_second=round(figures.middle, 2),
            least=figures.least,
            most=figures.most,
            runs=figures.count or len(figures.runs) or None,
            acceptance=None if accepted is None else round(accepted, 1),
            baseline=result.baseline,
            differs="; ".join(filter(None, differs)),
        )
