"""The files for Docker Compose of the presets whose images are published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from builder.exports import compose
from builder.presets import model_files
from builder.presets.catalog import PresetEntry
from builder.presets.service import Run, service
from builder.recipes.catalog import Catalog
from builder.site.facts import ImageFact, Option

MODELS = "./models"
"""The models directory, beside the file."""


def path(preset: str, context: int | None) -> str:
    """The file of a preset; ``context`` where it is not the preset's own."""
    return f"compose/{preset}{f'-{context}' if context else ''}.yaml"


def documents(
    catalog: Catalog,
    entries: Iterable[PresetEntry],
    images: Iterable[ImageFact],
    options: Iterable[Option],
) -> dict[str, str]:
    """The texts of the files that the options name, by path.

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
