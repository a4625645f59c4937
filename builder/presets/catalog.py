"""The presets of a farm: ``presets/NAME.toml``, checked against its recipes and cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from builder.errors import Problem, RecipeError
from builder.families import load_catalog
from builder.presets.check import doubts, findings, losses
from builder.presets.schema import Preset
from builder.recipes.catalog import Catalog, CatalogFile
from builder.recipes.parse import parse, read_text, suggestion


@dataclass(frozen=True, slots=True)
class PresetEntry(CatalogFile):
    """A file with a valid preset."""

    preset: Preset


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
        return tuple(problem for each in self.entries.values() for problem in problems_of(each))


def problems_of(entry: PresetEntry | BrokenPreset) -> tuple[Problem, ...]:
    """The problems of a file, if it is a broken one."""
    return entry.problems if isinstance(entry, BrokenPreset) else ()


def warnings_of(entry: PresetEntry | BrokenPreset, catalog: Catalog) -> tuple[Problem, ...]:
    """The options of a valid file that the images of its recipe do not suit."""
    if isinstance(entry, BrokenPreset):
        return ()
    recipe = catalog.engine(entry.preset.recipe).recipe
    return tuple(entry.problem(path, message) for path, message in doubts(entry.preset, recipe))


_Read = tuple[CatalogFile, Preset | None, tuple[Problem, ...]]


def load(catalog: Catalog) -> Presets:
    """Read the presets beside the recipes of ``catalog``; a broken file breaks its own entry."""
    return _checked(_files(catalog.root), catalog)


def with_recipes(root: Path, others: Iterable[str] = ()) -> tuple[Presets, Catalog]:
    """The presets of the farm at ``root``, with the recipes that they name, and ``others``.

    No other recipe is read.  Raises ``RecipeError`` where the farm has no recipes.
    """
    read = _files(root)
    named = {preset.recipe for _, preset, _ in read if preset is not None}
    catalog = load_catalog(root, only={*named, *others})
    return _checked(read, catalog), catalog


def _files(root: Path) -> list[_Read]:
    files = (root / "presets").glob("*.toml")
    return [_read(file) for file in sorted(files, key=attrgetter("stem"))]


def _checked(read: Sequence[_Read], catalog: Catalog) -> Presets:
    problems = {file.name: list(found) for file, _, found in read}
    parsed = {file.name: preset for file, preset, _ in read if preset is not None}
    files = {file.name: file for file, _, _ in read}
    for name, preset in parsed.items():
        found = findings(name, preset, catalog)
        problems[name] += [files[name].problem(path, message) for path, message in found]
    for name, (path, message) in losses(parsed):
        problems[name].append(files[name].problem(path, message))
    return Presets(
        {name: _entry(file, parsed.get(name), problems[name]) for name, file in files.items()}
    )


def of_recipe(root: Path, recipe: str) -> dict[str, Preset]:
    """The presets of a recipe by name; only their files are read, in the farm at ``root``.

    Raises ``RecipeError`` where one of them is invalid by itself.
    """
    found = {}
    for path in sorted((root / "presets").glob("*.toml")):
        file, preset, problems = _read(path)
        if preset is not None and preset.recipe == recipe:
            found[file.name] = preset
        elif preset is None and f'"{recipe}"' in file.text:
            raise RecipeError(f"the preset {file.name} is invalid", problems=problems)
    return found


def _read(file: Path) -> _Read:
    try:
        text = read_text(file)
    except RecipeError as error:
        unreadable = error.problems or (Problem(file, 1, "", error.why),)
        return CatalogFile(file.stem, file, ""), None, unreadable
    preset, problems = parse(text, file, Preset)
    return CatalogFile(file.stem, file, text), preset, problems


def _entry(
    file: CatalogFile, preset: Preset | None, problems: list[Problem]
) -> PresetEntry | BrokenPreset:
    if preset is None or problems:
        return BrokenPreset(file.name, file.file, file.text, preset, tuple(problems))
    return PresetEntry(file.name, file.file, file.text, preset)
