"""The costs of the missing parts of a run: the time of a build, the size of a download."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from builder.errors import BuilderError
from builder.families import ENGINES
from builder.launch.check import RunImage
from builder.launch.files import Missing
from builder.platforms import platform_of
from builder.publish.remote_image import remote_image
from builder.recipes.catalog import Catalog
from builder.recipes.schema import Recipe
from builder.records.record import newest_good
from builder.settings import Settings
from builder.tools import sizes
from builder.tools.docker import engine as docker
from builder.tools.log import Log, duration
from builder.tools.registry.client import Repository

CORE_SECONDS = 7.4
"""For one compile step: 339, 368 and 464 steps took 22, 21 and 29 minutes on two cores
(docs/measurements.md)."""
REST = 60
"""Seconds of a build beside its compile steps: sources, image, checks."""


def of_image(
    catalog: Catalog, recipe: Recipe, image: RunImage, settings: Settings, log: Log
) -> Iterator[str]:
    """The image that has to be built or pulled; nothing where Docker has it."""
    if image.fault is not None:
        yield f"build {image.name}, {build_time(catalog, recipe, settings)}"
    elif image.published:
        size = _pull_size(recipe, image, settings, log)
        yield f"pull {image.name}" + (f": {sizes.shown(size)}" if size else "")


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


def _pull_size(recipe: Recipe, image: RunImage, settings: Settings, log: Log) -> int:
    """Bytes of an image's compressed layers; 0 where its registry does not give them."""
    digest = image.name.partition("@")[2]
    try:
        name = settings.repository(recipe.image.repository)
        found = remote_image(Repository(name, log, settings.token_hosts), digest)
        platform = platform_of(docker.engine().architecture)
    except BuilderError as error:
        log(f"the size of {image.name} is not known: {error.what}")
        return 0
    if found is None:
        return 0
    own = found.platforms.get(platform) if platform else None
    return own.download_size if own else found.download_size
