"""The catalog: all recipes and bases of a directory, by name, and the chains of bases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from builder.errors import Problem, RecipeError
from builder.recipes.parse import parse, read_text, suggestion
from builder.recipes.schema import BaseRecipe, GitSource, Recipe
from builder.recipes.toml_lines import line_numbers, line_of

R = TypeVar("R", Recipe, BaseRecipe)
Check = Callable[[R], Iterable[tuple[tuple[str | int, ...], str]]]
"""A family's own rules: yields the path of each key that breaks one, and a message."""


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """A file of the catalog; ``name`` is the file's without its suffix."""

    name: str
    file: Path
    text: str

    def problem(self, path: tuple[str | int, ...], message: str) -> Problem:
        """A problem of this file at the line of the key ``path``."""
        key = ".".join(str(part) for part in path)
        return Problem(self.file, line_of(path, line_numbers(self.text)), key, message)


@dataclass(frozen=True, slots=True)
class Entry(CatalogFile, Generic[R]):
    """A file of the catalog with a valid recipe; the file has the recipe's name."""

    recipe: R

    def texts(self) -> dict[str, str]:
        """The texts of the file and of the locks that it names, by their paths in its directory.

        Raises ``RecipeError`` where one cannot be read.
        """
        tables = (self.recipe.debian, self.recipe.python)
        locks = [table.lock for table in tables if table is not None and table.lock]
        return {self.file.name: self.text} | {
            name: read_text(self.file.parent / name) for name in locks
        }


@dataclass(frozen=True, slots=True)
class BrokenEntry(CatalogFile, Generic[R]):
    """A file of the catalog with problems, and its recipe where it could be parsed."""

    recipe: R | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Catalog:
    """The contents of ``recipes/``; in-repo paths are relative to ``root``, the repository."""

    root: Path
    engines: Mapping[str, Entry[Recipe] | BrokenEntry[Recipe]]
    bases: Mapping[str, Entry[BaseRecipe] | BrokenEntry[BaseRecipe]]

    def engine(self, name: str) -> Entry[Recipe]:
        """The recipe of that name, or of that engine where it has one version only.

        Raises ``RecipeError`` where there is none, or the recipe or one of its bases is broken.
        """
        entry = self.engines.get(name) or self._only_version_of(name)
        if entry is None:
            if "@" in name:
                raise RecipeError(
                    f"no recipe is named {name}",
                    "MODEL@CARD is the name of a preset",
                    f"`builder show {name}` shows its recipe: name that",
                )
            engines = {e.recipe.engine for e in self.engines.values() if e.recipe}
            near = suggestion(name, sorted(engines | self.engines.keys()))
            raise RecipeError(
                f"no recipe is named {name}{near}", hint="`builder list` shows all recipes"
            )
        if isinstance(entry, BrokenEntry):
            raise RecipeError(f"the recipe {entry.name} is invalid", problems=entry.problems)
        for base in self.chain(entry.recipe.base):
            self.base(base)
        return entry

    def _only_version_of(self, engine: str) -> Entry[Recipe] | BrokenEntry[Recipe] | None:
        versions = [
            entry
            for entry in self.engines.values()
            # The engine of a file that cannot be parsed is not known, only the file's name.
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
        """The base of that name; raises ``RecipeError`` when it is absent or broken."""
        entry = self.bases.get(name)
        if entry is None:
            raise RecipeError(f"no base is named {name}{suggestion(name, sorted(self.bases))}")
        if isinstance(entry, BrokenEntry):
            raise RecipeError(f"the base {name} is invalid", problems=entry.problems)
        return entry

    def chain(self, base: str | None) -> list[str]:
        """The bases from ``base`` down to the lowest; ends where the chain closes."""
        return _chain(self.bases, base)

    def of_repository(self, name: str) -> list[Recipe]:
        """The recipes whose images are in a repository, without the namespace."""
        found = [entry.recipe for entry in self.engines.values() if entry.recipe is not None]
        return [recipe for recipe in found if recipe.image.repository == name]

    def problems(self) -> tuple[Problem, ...]:
        """All problems of all files of the catalog, the bases' first."""
        entries = (*self.bases.values(), *self.engines.values())
        return tuple(problem for entry in entries for problem in problems_of(entry))


def problems_of(entry: Entry[Any] | BrokenEntry[Any]) -> tuple[Problem, ...]:
    """The problems of an entry, if it is a broken one."""
    return entry.problems if isinstance(entry, BrokenEntry) else ()


@dataclass(slots=True)
class _Draft(Generic[R]):
    file: CatalogFile
    recipe: R | None
    problems: list[Problem]

    def finished(self) -> Entry[R] | BrokenEntry[R]:
        """The entry that it has become."""
        file = self.file
        if self.recipe is None or self.problems:
            return BrokenEntry(file.name, file.file, file.text, self.recipe, tuple(self.problems))
        return Entry(file.name, file.file, file.text, self.recipe)


def load(
    root: Path,
    engine_families: Mapping[str, Check[Recipe]],
    base_families: Mapping[str, Check[BaseRecipe]],
    new: CatalogFile | None = None,
    only: Collection[str] | None = None,
) -> Catalog:
    """Read every recipe below ``root/recipes``; families are given by name with their own rules.

    A broken file breaks its own entry and the entries that build on it, no others.  ``new`` is a
    recipe that has not been written: the catalog has it already.  ``only`` are names of recipes
    and of engines: no other recipe is read, nor compared with them; bases are read all.  Raises
    ``RecipeError`` when there is no such directory.
    """
    folder = root / "recipes"
    if not folder.is_dir():
        raise no_recipes(str(root))
    bases = _drafts(folder / "bases", BaseRecipe, base_families)
    engines = _drafts(folder, Recipe, engine_families, new, only)
    for base in bases.values():
        base.problems.extend(_base_problems(base, bases))
    for engine in engines.values():
        engine.problems.extend(_base_problems(engine, bases))
    _tag_problems(engines.values())
    return Catalog(
        root,
        {name: draft.finished() for name, draft in engines.items()},
        {name: draft.finished() for name, draft in bases.items()},
    )


def no_recipes(where: str) -> RecipeError:
    """The error where a directory has no recipes."""
    return RecipeError(
        f"{where} has no recipes/ directory",
        hint="change into a checkout of the farm, or name one with --catalog DIR",
    )


def _drafts(
    folder: Path,
    model: type[R],
    families: Mapping[str, Check[R]],
    new: CatalogFile | None = None,
    only: Collection[str] | None = None,
) -> dict[str, _Draft[R]]:
    """The files of a directory, each checked except for its bases."""
    files = {*folder.glob("*.toml"), *([new.file] if new else [])}
    if only is not None:
        begins = tuple(f"{name}-" for name in only)  # ENGINE-VERSION.toml
        files = {file for file in files if file.stem in only or file.stem.startswith(begins)}
    drafts: dict[str, _Draft[R]] = {
        file.stem: _parsed(new, model) if new and file == new.file else _read(file, model)
        for file in sorted(files, key=attrgetter("stem"))
    }
    declared: dict[str, list[str]] = defaultdict(list)
    for stem, draft in drafts.items():
        if draft.recipe is not None:
            declared[draft.recipe.name].append(stem)
            draft.problems.extend(_patch_problems(draft.file, draft.recipe))
            draft.problems.extend(_family_problems(draft.file, draft.recipe, families))
    path = ("engine",) if model is Recipe else ("name",)
    keys = "engine or version in one of the files" if model is Recipe else "name in one of them"
    for name, stems in declared.items():
        for stem in stems:
            file = drafts[stem].file
            others = ", ".join(f"{other}.toml" for other in stems if other != stem)
            if others:
                problem = file.problem(path, f"{name} is also declared by {others}: change {keys}")
                drafts[stem].problems.append(problem)
            elif stem != name:
                problem = file.problem(path, f"declares {name}: the file must be {name}.toml")
                drafts[stem].problems.append(problem)
    return drafts


def _read(file: Path, model: type[R]) -> _Draft[R]:
    try:
        text = read_text(file)
    except RecipeError as error:
        unreadable = error.problems or (Problem(file, 1, "", error.why),)
        return _Draft(CatalogFile(file.stem, file, ""), None, list(unreadable))
    return _parsed(CatalogFile(file.stem, file, text), model)


def _parsed(file: CatalogFile, model: type[R]) -> _Draft[R]:
    recipe, problems = parse(file.text, file.file, model)
    return _Draft(file, recipe, list(problems))


def _patch_problems(file: CatalogFile, recipe: Recipe | BaseRecipe) -> Iterable[Problem]:
    """A pull request, or a range of commits, is of a repository: its own, or the source's."""
    if isinstance(recipe, BaseRecipe) or isinstance(recipe.source, GitSource):
        return
    for index, patch in enumerate(recipe.patch):
        kind = patch.origin.kind
        if kind in {"pull", "pick"} and not patch.origin.git:
            message = "needs git = URL: the source is no git repository"
            yield file.problem(("patch", index, kind), message)


def _family_problems(
    file: CatalogFile, recipe: R, families: Mapping[str, Check[R]]
) -> list[Problem]:
    check = families.get(recipe.family)
    if check is None:
        near = suggestion(recipe.family, sorted(families))
        known = ", ".join(sorted(families))
        message = f"there is no family {recipe.family}{near} (there are: {known})"
        return [file.problem(("family",), message)]
    return [file.problem(path, message) for path, message in check(recipe)]


def _tag_problems(drafts: Iterable[_Draft[Recipe]]) -> None:
    """Add a problem to each recipe that has a tag of its image from another recipe as well.

    Recipes may share a tag that moves in each of them: the recipe that is pushed last has it.
    """
    owners: dict[tuple[str, str], list[_Draft[Recipe]]] = defaultdict(list)
    for draft in drafts:
        if draft.recipe is not None:
            image = draft.recipe.image
            for tag in dict.fromkeys([*image.tags, *image.moving]):
                owners[image.repository, tag].append(draft)
    for (repository, tag), claims in owners.items():
        tags = [each.recipe.image.tags for each in claims if each.recipe is not None]
        moving = [each.recipe.image.moving for each in claims if each.recipe is not None]
        if len(claims) == 1 or all(tag in names for names in moving):
            continue
        for draft, names in zip(claims, tags, strict=True):
            others = ", ".join(each.file.file.name for each in claims if each is not draft)
            key = ("tags", names.index(tag)) if tag in names else ("moving",)
            message = (
                f"{repository}:{tag} is also a tag of {others}: change repository or tags in one "
                "of the files"
            )
            draft.problems.append(draft.file.problem(("image", *key), message))


class _HasRecipe(Protocol):
    @property
    def recipe(self) -> Recipe | BaseRecipe | None: ...


def _chain(bases: Mapping[str, _HasRecipe], base: str | None) -> list[str]:
    names: list[str] = []
    while base is not None and base not in names:
        names.append(base)
        entry = bases.get(base)
        base = entry.recipe.base if entry and entry.recipe else None
    return names


def _cycle(chain: list[str], bases: Mapping[str, _HasRecipe]) -> str:
    """``a -> b -> a`` where the chain of bases closes, otherwise nothing."""
    last = bases.get(chain[-1]) if chain else None
    if last is None or last.recipe is None or last.recipe.base not in chain:
        return ""
    return " -> ".join([*chain[chain.index(last.recipe.base) :], last.recipe.base])


def _base_problems(draft: _Draft[Any], bases: Mapping[str, _HasRecipe]) -> Iterable[Problem]:
    """The bases of a recipe are there, and their chain has an end."""
    chain = _chain(bases, draft.recipe.base if draft.recipe else None)
    for name in chain:
        if name not in bases:
            near = suggestion(name, sorted(bases))
            yield draft.file.problem(("base",), f"there is no base {name}{near}")
    cycle = _cycle(chain, bases)
    if cycle:
        yield draft.file.problem(("base",), f"the bases form a cycle: {cycle}")
