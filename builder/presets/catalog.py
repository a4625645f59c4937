"""The presets of a farm: ``presets/NAME.toml``, checked against its recipes and cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import Problem, RecipeError, suggestion
from builder.engines.families import load_catalog
from builder.presets.check import doubts, findings, losses
from builder.presets.schema import Preset
from builder.recipes.catalog import Catalog, CatalogFile, EntryDraft, drafts_of


@dataclass(frozen=True, slots=True)
class PresetEntry(CatalogFile):
    """A file with a valid preset."""

    preset: Preset
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokenPreset(CatalogFile):
    """A file with problems, and its preset where it could be parsed."""

    preset: Preset | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Presets:
    """The contents of ``presets/``, by the file's name without its suffix."""

    entries: Mapping[str, PresetEntry | BrokenPreset]

    def entry(self, name: str) -> PresetEntry | BrokenPreset:
        """The file of that name; raises ``RecipeError`` where there is none."""
        entry = self.entries.get(name)
        if entry is None:
            near = suggestion(name, sorted(self.entries))
            raise RecipeError(
                f"no preset is named {name}{near}", hint="`builder list --presets` shows all"
            )
        return entry

    def preset(self, name: str) -> PresetEntry:
        """The preset of that name; raises ``RecipeError`` where there is none, or it is broken."""
        entry = self.entry(name)
        if isinstance(entry, BrokenPreset):
            raise RecipeError(f"the preset {name} is invalid", problems=entry.problems)
        return entry

    def valid(self) -> list[PresetEntry]:
        """The presets without problems."""
        return [entry for entry in self.entries.values() if isinstance(entry, PresetEntry)]

    def of_recipe(self, recipe: str) -> list[PresetEntry | BrokenPreset]:
        """The presets that name a recipe, also broken ones."""
        return [
            entry
            for entry in self.entries.values()
            if entry.preset is not None and entry.preset.recipe == recipe
        ]

    def problems(self) -> tuple[Problem, ...]:
        """All problems of all files."""
        return tuple(problem for each in self.entries.values() for problem in each.problems)


def warnings_of(entry: PresetEntry | BrokenPreset, catalog: Catalog) -> tuple[Problem, ...]:
    """The options of a valid file that the images of its recipe do not suit."""
    if isinstance(entry, BrokenPreset):
        return ()
    recipe = catalog.engine(entry.preset.recipe).recipe
    return tuple(entry.problem(path, message) for path, message in doubts(entry.preset, recipe))


def load(catalog: Catalog) -> Presets:
    """Read the presets beside the recipes of ``catalog``; a broken file breaks its own entry."""
    return _checked(_drafts(catalog.root), catalog)


def with_recipes(root: Path, others: Iterable[str] = ()) -> tuple[Presets, Catalog]:
    """The presets of the farm at ``root``, with the recipes that they name, and ``others``.

    No other recipe is read.  Raises ``RecipeError`` where the farm has no recipes.
    """
    drafts = _drafts(root)
    named = {draft.model.recipe for draft in drafts if draft.model is not None}
    catalog = load_catalog(root, only={*named, *others})
    return _checked(drafts, catalog), catalog


def of_recipe(root: Path, recipe: str) -> dict[str, Preset]:
    """The presets of a recipe by name; only their files are read, in the farm at ``root``.

    Raises ``RecipeError`` where one of them is invalid by itself.
    """
    found = {}
    for draft in _drafts(root):
        if draft.model is not None and draft.model.recipe == recipe:
            found[draft.name] = draft.model
        elif draft.model is None and f'"{recipe}"' in draft.text:
            raise RecipeError(f"the preset {draft.name} is invalid", problems=(*draft.problems,))
    return found


def _drafts(root: Path) -> list[EntryDraft[Preset]]:
    return drafts_of((root / "presets").glob("*.toml"), Preset)


def _checked(drafts: Sequence[EntryDraft[Preset]], catalog: Catalog) -> Presets:
    parsed = {draft.name: draft.model for draft in drafts if draft.model is not None}
    lost = [*losses(parsed)]
    entries: dict[str, PresetEntry | BrokenPreset] = {}
    for draft in drafts:
        name, preset = draft.name, draft.model
        found = [*findings(name, preset, catalog)] if preset is not None else []
        for path, message in [*found, *(finding for other, finding in lost if other == name)]:
            draft.refuse(path, message)
        if preset is None or draft.problems:
            problems = tuple(draft.problems)
            entries[name] = BrokenPreset(name, draft.file, draft.text, preset, problems)
        else:
            entries[name] = PresetEntry(name, draft.file, draft.text, preset)
    return Presets(entries)
