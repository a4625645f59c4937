"""The catalog: all recipes and bases of a directory, their names and how they hang together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

from builder.errors import Problem, RecipeError
from builder.recipes.parse import parse, read_text, suggestion
from builder.recipes.schema import BaseRecipe, GitSource, PickPatch, PullPatch, Recipe
from builder.recipes.toml_lines import line_numbers, line_of

R = TypeVar("R", Recipe, BaseRecipe)
Check = Callable[[R], Iterable[tuple[tuple[str | int, ...], str]]]
"""A family's own rules: gives the path of each key that breaks one, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[R]):
    """One file of the catalog: its recipe, or what is wrong with it.

    ``name`` is the name of the file without its suffix, which must be the recipe's own.
    """

    name: str
    file: Path
    text: str
    recipe: R | None
    problems: tuple[Problem, ...] = ()

    def problem(self, path: tuple[str | int, ...], message: str) -> Problem:
        """A problem of this file at the line of the key ``path``."""
        key = ".".join(str(part) for part in path)
        return Problem(self.file, line_of(path, line_numbers(self.text)), key, message)


@dataclass(frozen=True, slots=True)
class Catalog:
    """What ``recipes/`` holds.  ``root`` is the repository that in-repo paths are relative to."""

    root: Path
    engines: Mapping[str, Entry[Recipe]]
    bases: Mapping[str, Entry[BaseRecipe]]

    def engine(self, name: str) -> Entry[Recipe]:
        """The recipe of that name, or of that engine where it has one version only.

        Raises ``RecipeError`` where there is none, or it or a base of it is wrong.
        """
        entry = self.engines.get(name) or self._only_version_of(name)
        if entry is None:
            engines = {e.recipe.engine for e in self.engines.values() if e.recipe}
            near = suggestion(name, sorted(engines | self.engines.keys()))
            raise RecipeError(
                f"no recipe is named {name}{near}", hint="`builder list` shows all recipes"
            )
        if entry.recipe is None or entry.problems:
            raise RecipeError(f"the recipe {entry.name} is wrong", problems=entry.problems)
        for base in self.chain(entry.recipe.base):
            self.base(base)
        return entry

    def _only_version_of(self, engine: str) -> Entry[Recipe] | None:
        versions = [
            entry
            for entry in self.engines.values()
            # Of a file that cannot be read only its own name is known.
            if (
                entry.recipe.engine == engine
                if entry.recipe
                else entry.name.startswith(f"{engine}-")
            )
        ]
        if len(versions) > 1:
            names = ", ".join(sorted(entry.name for entry in versions))
            raise RecipeError(f"{engine} has several versions", names, "name one of them")
        return versions[0] if versions else None

    def base(self, name: str) -> Entry[BaseRecipe]:
        """The base of that name; raises ``RecipeError`` when it is absent or wrong."""
        entry = self.bases.get(name)
        if entry is None:
            raise RecipeError(f"no base is named {name}{suggestion(name, sorted(self.bases))}")
        if entry.recipe is None or entry.problems:
            raise RecipeError(f"the base {name} is wrong", problems=entry.problems)
        return entry

    def chain(self, base: str | None) -> list[str]:
        """The bases from ``base`` down to the one that has none; ends where the chain closes."""
        return _chain(self.bases, base)

    def problems(self) -> tuple[Problem, ...]:
        """Everything that is wrong with any file of the catalog."""
        of_bases = [problem for base in self.bases.values() for problem in base.problems]
        of_engines = [problem for engine in self.engines.values() for problem in engine.problems]
        return (*of_bases, *of_engines)


def load(
    root: Path,
    engine_families: Mapping[str, Check[Recipe]],
    base_families: Mapping[str, Check[BaseRecipe]],
) -> Catalog:
    """Read every recipe below ``root/recipes``; families are given by name with their own rules.

    A file that is wrong spoils its own entry and those that build on it, no others.  Raises
    ``RecipeError`` when there is no such directory.
    """
    folder = root / "recipes"
    if not folder.is_dir():
        raise RecipeError(
            f"{root} holds no recipes/ directory",
            hint="run builder inside a checkout of the farm, or name one with --catalog DIR",
        )
    bases = _entries(folder / "bases", BaseRecipe, base_families)
    for name, base in bases.items():
        bases[name] = _with_base_problems(base, base.recipe.base if base.recipe else None, bases)
    engines = _entries(folder, Recipe, engine_families)
    for name, engine in engines.items():
        base_name = engine.recipe.base if engine.recipe else None
        engines[name] = _with_base_problems(engine, base_name, bases)
    return Catalog(root, engines, bases)


def _entries(folder: Path, model: type[R], families: Mapping[str, Check[R]]) -> dict[str, Entry[R]]:
    entries = {
        file.stem: _read(file, model)
        for file in sorted(folder.glob("*.toml"), key=attrgetter("stem"))
    }
    declared: dict[str, list[str]] = defaultdict(list)
    for stem, entry in entries.items():
        if entry.recipe is not None:
            declared[entry.recipe.name].append(stem)
    for name, stems in declared.items():
        for stem in stems:
            entry = entries[stem]
            found = list(entry.problems)
            found += _patch_problems(entry)
            found += _family_problems(entry, families)
            path = ("engine",) if model is Recipe else ("name",)
            others = [f"{other}.toml" for other in stems if other != stem]
            if others:
                found.append(entry.problem(path, f"{name} is also declared by {', '.join(others)}"))
            elif stem != name:
                found.append(entry.problem(path, f"declares {name}: the file must be {name}.toml"))
            entries[stem] = replace(entry, problems=tuple(found))
    return entries


def _read(file: Path, model: type[R]) -> Entry[R]:
    try:
        text = read_text(file)
    except RecipeError as error:
        problems = error.problems or (Problem(file, 1, "", error.why),)
        return Entry(file.stem, file, "", None, problems)
    recipe, problems = parse(text, file, model)
    return Entry(file.stem, file, text, recipe, problems)


def _patch_problems(entry: Entry[Any]) -> Iterable[Problem]:
    """A pull request, or a range of commits, is of a repository: its own, or the source's."""
    recipe = entry.recipe
    if not isinstance(recipe, Recipe) or isinstance(recipe.source, GitSource):
        return
    for index, patch in enumerate(recipe.patch):
        if isinstance(patch, PullPatch) and patch.git is None:
            yield entry.problem(("patch", index, "pull"), "of which repository? Say git = URL")
        if isinstance(patch, PickPatch) and patch.pick.git is None:
            yield entry.problem(("patch", index, "pick"), "of which repository? Say git = URL")


def _family_problems(entry: Entry[R], families: Mapping[str, Check[R]]) -> list[Problem]:
    assert entry.recipe is not None
    check = families.get(entry.recipe.family)
    if check is None:
        name = entry.recipe.family
        near = suggestion(name, sorted(families))
        known = ", ".join(sorted(families))
        return [entry.problem(("family",), f"there is no family {name}{near} (there are: {known})")]
    return [entry.problem(path, message) for path, message in check(entry.recipe)]


def _chain(bases: Mapping[str, Entry[BaseRecipe]], base: str | None) -> list[str]:
    names: list[str] = []
    while base is not None and base not in names:
        names.append(base)
        entry = bases.get(base)
        base = entry.recipe.base if entry and entry.recipe else None
    return names


def _cycle(chain: list[str], bases: Mapping[str, Entry[BaseRecipe]]) -> str:
    """``a -> b -> a`` where the chain of bases closes, otherwise nothing."""
    last = bases.get(chain[-1]) if chain else None
    if last is None or last.recipe is None or last.recipe.base not in chain:
        return ""
    return " -> ".join([*chain[chain.index(last.recipe.base) :], last.recipe.base])


def _with_base_problems(
    entry: Entry[R], base: str | None, bases: Mapping[str, Entry[BaseRecipe]]
) -> Entry[R]:
    chain: list[str] = _chain(bases, base)
    found: list[Problem] = []
    for name in chain:
        if name not in bases:
            near = suggestion(name, sorted(bases))
            found.append(entry.problem(("base",), f"there is no base {name}{near}"))
    cycle = _cycle(chain, bases)
    if cycle:
        found.append(entry.problem(("base",), f"the bases form a cycle: {cycle}"))
    return replace(entry, problems=(*entry.problems, *found))
