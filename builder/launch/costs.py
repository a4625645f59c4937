"""The costs of the missing parts of a run: the time of a build, the size of a download."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from builder.families import ENGINES
from builder.launch.files import Missing
from builder.launch.images import Images, RunImage
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
from builder.records.record import newest_good
from builder.settings import Settings
from builder.tools import sizes
from builder.tools.log import duration

CORE_SECONDS = 7.4
"""For one compile step: 339, 368 and 464 steps took 22, 21 and 29 minutes on two cores
(docs/measurements.md)."""
REST = 60
"""Seconds of a build beside its compile steps: sources, image, checks."""


def of_image(
    catalog: Catalog, recipe: Recipe, images: Images, image: RunImage, settings: Settings
) -> Iterator[str]:
    """The image that has to be built or pulled; nothing where Docker has it."""
    if image.what:
        yield f"build {images.tagged}, {build_time(catalog, recipe, settings)}; {image.what}"
    elif not image.local:  # what Docker has of its layers is not known
        yield f"pull {image.name}" + (f": at most {sizes.shown(image.size)}" if image.size else "")


def of_files(missing: Sequence[Missing], directory: Path) -> Iterator[str]:
    """The files that have to be downloaded to the models directory."""
    for each in missing:
        yield f"download {each.file.shown}: {sizes.shown(each.size)} to {directory}"


def build_time(catalog: Catalog, recipe: Recipe, settings: Settings) -> str:
    """How long a build takes: as long as the last one here, else by its compile steps.

    Where a recipe does not give its steps, the other recipes of its family do.
    """
    kept = newest_good(settings.state_dir, recipe.name)
    took = kept.build_seconds if kept else None
    if took is not None:
        return f"which took {duration(took)} last time"
    if not ENGINES[recipe.family].uses_ccache:
        return "which compiles nothing"
    others = [each.recipe for each in catalog.engines.values() if each.recipe is not None]
    known = [each.build.steps for each in others if each.family == recipe.family]
    steps = recipe.build.steps or round(median([*filter(None, known)] or [0]))
    if not steps:
        return "which compiles for a time that is not known"
    cores = settings.jobs or os.cpu_count() or 1
    minutes = round((REST + steps * CORE_SECONDS / cores) / 60)
    on = f"{cores} cores" if cores > 1 else "one core"
    why = f"{steps} compile steps" if recipe.build.steps else "as similar recipes"
    return f"which takes about {max(minutes, 1)} min on {on}: {why}"
