"""The catalog: all recipes and bases of a directory, by name, and the chains of bases."""

from __future__ import annotations

import glob
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

import tomli
from pydantic import BaseModel, ValidationError

from builder.core.errors import Problem, RecipeError, in_words, suggestion
from builder.core.farm import no_recipes
from builder.core.toml_lines import line_numbers, line_of
from builder.recipes.fields import NAME, PATTERNS, Model, Name
from builder.recipes.patches import PATCHES
from builder.recipes.probes import PROBES, Accept
from builder.recipes.schema import (
    EXTENDED_WHOLE,
    NOT_EXTENDED,
    SOURCES,
    Added,
    BaseRecipe,
    GitSource,
    Recipe,
)

# A recipe file becomes a ``Recipe``, or a list of all its problems.

Read = TypeVar("Read", bound=BaseModel)
PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
TAGS = {*SOURCES, *PROBES, *PATCHES, "bool", "int", "str"}


@cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def fields_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """The keys that the model knows at ``path``, through nested models, lists and unions."""
    schema = _schema_of(model)
    waiting, nodes = [schema], list[dict[str, Any]]()
    for part in (*path, None):
        nodes = []
        while waiting:
            node = waiting.pop()
            if "$ref" in node:
                waiting.append(schema["$defs"][node["$ref"].rsplit("/", 1)[1]])
            elif "anyOf" in node or "oneOf" in node:
                waiting += node.get("anyOf") or node["oneOf"]
            else:
                nodes.append(node)
        if part is not None:
            named = [{0: each.get("items")} | each.get("properties", {}) for each in nodes]
            inner = [each.get(0 if isinstance(part, int) else part) for each in named]
            waiting = [each for each in inner if isinstance(each, dict)]
    return sorted({key for node in nodes for key in node.get("properties", {})})


def _message(error: Any, path: tuple[str | int, ...], model: type[BaseModel]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    given = repr(error.get("input"))
    given = given if len(given) <= 200 else f"{given[:200]}..."
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        known = fields_at(model, path[:-1])
        return f"unknown key{suggestion(str(path[-1]), known)}"
    if kind == "missing":
        return "is missing"
    if kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern", ""))
        return f"{given}: {PATTERNS[pattern]}"
    if kind == "value_error":
        # A table as a whole breaks the rule: its repr would be Python's.
        whole = isinstance(error.get("input"), dict)
        return str(context["error"]) if whole else f"{given}: {context['error']}"
    return in_words(error["msg"])


def _problems(error: ValidationError, file: CatalogFile, model: type[BaseModel]) -> list[Problem]:
    found: dict[tuple[int, str, str], Problem] = {}
    for item in error.errors(include_url=False):
        path = _document_path(item["loc"])
        problem = file.problem(path, _message(item, path, model))
        found.setdefault((problem.line, problem.key, problem.message), problem)
    return sorted(found.values(), key=lambda problem: problem.line)


def _document_path(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The path in the document of an error's location, without the tags of pydantic's unions."""
    path: tuple[str | int, ...] = ()
    untagged: set[tuple[str | int, ...]] = set()
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        tag_of_table = not last and (
            path == ("source",)
            or (path[:1] in {("probe",), ("patch",)} and len(path) == 2)
            or (path[:1] == ("patch",) and path[2:] == ("probe",))
        )
        tag_of_scalar = path[-2:-1] in {("define",), ("config",)}
        if part in TAGS and (tag_of_table or tag_of_scalar) and path not in untagged:
            untagged.add(path)
            continue
        path = (*path, part)
    return path


def parse(text: str, file: Path, model: type[Read]) -> tuple[Read | None, tuple[Problem, ...]]:
    """The model that a TOML text holds and no problems, or ``None`` and all its problems.

    A recipe that extends another one of ``file``'s directory is read with that one.
    """
    own = CatalogFile(file.stem, file, text)
    try:
        document = tomli.loads(text)
    except RecursionError:
        return None, (Problem(file, 1, "", "not TOML: nested too deep"),)
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        line = getattr(error, "lineno", text.count("\n") + 1)
        return None, (Problem(file, line, "", f"not TOML: {error}"),)
    try:
        if model is Recipe and (above := own.extended(document)) is not None:
            document = _merged(document, tomli.loads(above.text))
        return model.model_validate(document), ()
    except ValidationError as error:
        return None, tuple(_problems(error, own, model))
    except RecipeError as error:
        return None, error.problems


def _merged(own: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The document of a recipe that extends another one: its keys win, tables go key by key, and
    ``add`` comes after lists."""
    added = own.pop("add", {})
    merged = _over(own, {key: above[key] for key in above if key not in NOT_EXTENDED})
    for key in Added.model_fields if isinstance(added, dict) else ():
        before = merged.get(key, [])
        if isinstance(before, list) and isinstance(added.get(key), list):
            merged[key] = [*before, *added.pop(key)]
    return {**merged, "add": added} if added else merged


def _over(own: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    tables = {
        key: _over(value, above[key])
        for key, value in own.items()
        if isinstance(value, dict)
        if isinstance(above.get(key), dict)
        if key not in EXTENDED_WHOLE
    }
    return {**above, **own, **tables}


def read_model(file: Path, model: type[Read], invalid: str = "") -> Read:
    """The model that a TOML file holds.

    Raises ``RecipeError`` where it cannot be read, or is invalid, which ``invalid`` says.
    """
    found, problems = parse(read_text(file), file, model)
    if found is None:
        raise RecipeError(invalid or f"{file.name} is invalid", problems=problems)
    return found


def read_text(file: Path) -> str:
    """The text of a recipe file; raises ``RecipeError`` when it cannot be read as UTF-8."""
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise RecipeError(f"cannot read {file}", error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        problem = Problem(file, 1, "", f"not UTF-8 at byte {error.start}")
        raise RecipeError(f"{file.name} is not a text", problems=(problem,)) from error


class _Known(Accept):
    families: list[Name] = []


class _Accepted(Model):
    accept: list[_Known]


@cache
def known_exceptions(family: str) -> Sequence[Accept]:
    """The exceptions of all images of a family, which no recipe repeats: ``accepted.toml``."""
    known = read_model(Path(__file__).with_name("accepted.toml"), _Accepted).accept
    return [each for each in known if not each.families or family in each.families]


# The catalog.

M = TypeVar("M", bound=BaseModel)
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
        """A problem of this file at the line of the key ``path``; where only the recipe that it
        extends has the key, at ``extends``, with that file's line in the message."""
        key = ".".join(
            str(part) if isinstance(part, int) or PLAIN_KEY.fullmatch(part) else json.dumps(part)
            for part in path
            if part != "[key]"
        )
        places, above = line_numbers(self.text), None
        if ("extends",) in places and path != ("extends",):
            above = self.extended(tomli.loads(self.text))
        if above is None:
            return Problem(self.file, line_of(path, places), key, message)
        theirs = line_numbers(above.text)
        listed = places if path[:1] in places else theirs
        if path[1:] and isinstance(path[1], int) and path[:2] not in listed:
            count = sum(each[:1] == path[:1] and len(each) == 2 for each in listed)
            path = ("add", path[0], path[1] - count, *path[2:])
        depth = max((n for n in range(1, len(path) + 1) if path[:n] in places), default=0)
        own = depth > 0 and path[0] in EXTENDED_WHOLE  # as a list that the file has
        own = own or any(isinstance(part, int) for part in path[: depth + 1])
        if not own and path[: depth + 1] in theirs and depth < len(path):
            place = f"{above.file.name}:{line_of(path, theirs)}"
            path, message = ("extends",), f"{message} ({place}, which this recipe extends)"
        return Problem(self.file, line_of(path if depth else ("extends",), places), key, message)

    def extended(self, document: dict[str, Any]) -> CatalogFile | None:
        """The file of the recipe that this one extends; None: it extends none, or not by a name.

        Raises ``RecipeError`` where it is no whole recipe of the same engine.
        """
        name = document.get("extends")
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            return None
        file = self.file.with_name(f"{name}.toml")
        try:
            above = CatalogFile(name, file, file.read_text("utf-8"))
            other = tomli.loads(above.text)
        except FileNotFoundError:
            near = suggestion(name, [each.stem for each in file.parent.glob("*.toml")])
            why = f"there is no recipe {name}{near}"
        except (OSError, ValueError, RecursionError) as error:
            why = f"{file.name} cannot be read: {error}"
        else:
            engine = other.get("engine")
            if file == self.file:
                why = "a recipe cannot extend itself"
            elif "extends" in other:
                why = f"{file.name} extends {other['extends']} itself: extend that one"
            elif document.get("engine", engine) == engine:
                return above
            else:
                why = f"{file.name} is of another engine, {engine}: only versions of one extend"
        line = line_of(("extends",), line_numbers(self.text))
        problem = Problem(self.file, line, "extends", why)
        raise RecipeError(f"{self.file.name} is invalid", problems=(problem,))


@dataclass(frozen=True, slots=True)
class EntryDraft(CatalogFile, Generic[M]):
    """A file that is being checked: its model, where it could be parsed, and its problems."""

    model: M | None
    problems: list[Problem]

    def refuse(self, path: tuple[str | int, ...], message: str) -> None:
        """Add a problem."""
        self.problems.append(self.problem(path, message))


def drafts_of(
    files: Iterable[Path], model: type[M], new: CatalogFile | None = None
) -> list[EntryDraft[M]]:
    """The TOML files of a folder, by name; ``new`` has the text of one that is not written."""
    drafts = []
    for file in sorted(files, key=attrgetter("stem")):
        text, found = "", None
        try:
            text = new.text if new is not None and file == new.file else read_text(file)
            found, problems = parse(text, file, model)
        except RecipeError as error:
            problems = error.problems or (Problem(file, 1, "", error.why),)
        drafts.append(EntryDraft(file.stem, file, text, found, list(problems)))
    return drafts


def locks_of(recipe: Recipe | BaseRecipe) -> dict[str, str]:
    """The lock files that a recipe or a base names, relative to it, by the table with the name."""
    tables = {"debian": recipe.debian, "python": recipe.python}
    return {name: table.lock for name, table in tables.items() if table and table.lock}


@dataclass(frozen=True, slots=True)
class Entry(CatalogFile, Generic[R]):
    """A file of the catalog with a valid recipe; the file has the recipe's name."""

    recipe: R

    @property
    def whole(self) -> str:
        """The text; of a recipe that extends another one the text of both in one, for a place that
        does not have that one."""
        document = tomli.loads(self.text)
        above = self.extended(document) if isinstance(self.recipe, Recipe) else None
        if above is None:
            return self.text
        from tomlkit import dumps  # slow to import

        found = _merged(document, tomli.loads(above.text))
        del found["extends"]
        found = dict(sorted(found.items(), key=lambda each: _is_table(each[1])))
        first = self.text.partition("\n")[0]
        return (f"{first}\n" if first.startswith("#:") else "") + dumps(found)

    def require_own_lock(self, table: str) -> None:
        """Raise ``RecipeError`` where the lock that [python] or [debian] names belongs to a
        recipe which this one extends."""
        if table in locks_of(self.recipe) and (table, "lock") not in line_numbers(self.text):
            above = getattr(self.recipe, "extends", "")
            raise RecipeError(
                f"{self.name} has the {table} lock of {above}, which it extends",
                hint=f"`builder pin lock {above}`, or give it another one: lock in [{table}]",
            )

    def texts(self) -> dict[str, str]:
        """The texts of the file and of the locks that it names, by their paths in its directory.

        Raises ``RecipeError`` where one cannot be read.
        """
        locks = locks_of(self.recipe).values()
        return {self.file.name: self.whole} | {
            name: read_text(self.file.parent / name) for name in locks
        }


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )


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
        """The recipe of that name, or the current one of that engine.

        Raises ``RecipeError`` where there is none, or the recipe or one of its bases is broken.
        """
        entry = self.engines.get(name) or self._version_of(name)
        if entry is None:
            if "@" in name:
                raise RecipeError(
                    f"no recipe is named {name}",
                    "MODEL@CARD is the name of a preset",
                    f"`builder show {name}` shows its recipe: name that",
                )
            if next((self.root / "presets").glob(f"{glob.escape(name)}*@*.toml"), None):
                raise RecipeError(
                    f"no recipe is named {name}",
                    f"{name} is a model",
                    f"`builder run {name}` starts it; `builder show {name}` names its recipe",
                )
            engines = {e.recipe.engine for e in self.engines.values() if e.recipe}
            near = suggestion(name, sorted(engines | self.engines.keys()))
            raise RecipeError(
                f"no recipe is named {name}{near}",
                hint="`builder list` shows all recipes; the bases are in recipes/bases",
            )
        if isinstance(entry, BrokenEntry):
            raise RecipeError(f"the recipe {entry.name} is invalid", problems=entry.problems)
        for base in self.chain(entry.recipe.base):
            self.base(base)
        return entry

    def _version_of(self, engine: str) -> Entry[Recipe] | BrokenEntry[Recipe] | None:
        """The current recipe of an engine, the one without a channel where there are several."""

        def is_of(entry: Entry[Recipe] | BrokenEntry[Recipe]) -> bool:
            # The engine of a file that cannot be parsed is not known, only the file's name.
            recipe = entry.recipe
            return recipe.engine == engine if recipe else entry.name.startswith(f"{engine}-")

        versions = list(filter(is_of, self.engines.values()))
        current = [each for each in versions if not (each.recipe and each.recipe.kept)]
        stable = [each for each in current if not (each.recipe and each.recipe.channel)]
        for some in (versions, current, stable):
            if len(some) == 1:
                return some[0]
        if versions:
            names = ", ".join(sorted(entry.name for entry in current or versions))
            raise RecipeError(f"{engine} has several versions", names, "name one of them")
        return None

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
        return _chain({name: entry.recipe for name, entry in self.bases.items()}, base)

    def rivals(self, recipe: Recipe) -> list[str]:
        """Other current recipes of the engine and the channel of a current recipe."""
        found = [each.recipe for each in self.engines.values() if each.recipe and not recipe.kept]
        return [
            each.name
            for each in found
            if not each.kept and each.name != recipe.name
            if (each.engine, each.channel) == (recipe.engine, recipe.channel)
        ]

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
    files = {*folder.glob("*.toml"), *([new.file] if new else [])}
    if only is not None:
        begins = tuple(f"{name}-" for name in only)  # ENGINE-VERSION.toml
        files = {file for file in files if file.stem in only or file.stem.startswith(begins)}
    bases = drafts_of((folder / "bases").glob("*.toml"), BaseRecipe)
    engines = drafts_of(files, Recipe, new)
    _check_families(bases, base_families)
    _check_families(engines, engine_families)
    _check_names(bases, ("name",), "name in one of them")
    _check_names(engines, ("engine",), "engine or version in one of the files")
    known = {base.name: base.model for base in bases}
    for base in bases:
        _check_bases(base, known)
    for engine in engines:
        _check_bases(engine, known)
        _check_patches(engine)
    _check_tags(engines)
    return Catalog(
        root,
        {draft.name: _entry(draft) for draft in engines},
        {draft.name: _entry(draft) for draft in bases},
    )


def _entry(draft: EntryDraft[R]) -> Entry[R] | BrokenEntry[R]:
    if draft.model is None or draft.problems:
        problems = tuple(draft.problems)
        return BrokenEntry(draft.name, draft.file, draft.text, draft.model, problems)
    return Entry(draft.name, draft.file, draft.text, draft.model)


def _check_names(drafts: Iterable[EntryDraft[R]], path: tuple[str], keys: str) -> None:
    """Each file has the name that it declares, and no two declare the same."""
    declared: dict[str, list[EntryDraft[R]]] = defaultdict(list)
    for draft in drafts:
        if draft.model is not None:
            declared[draft.model.name].append(draft)
    for name, same in declared.items():
        for draft in same:
            others = ", ".join(f"{other.name}.toml" for other in same if other is not draft)
            if others:
                draft.refuse(path, f"{name} is also declared by {others}: change {keys}")
            elif draft.name != name:
                draft.refuse(path, f"declares {name}: the file must be {name}.toml")


def _check_families(drafts: Iterable[EntryDraft[R]], families: Mapping[str, Check[R]]) -> None:
    for draft in drafts:
        if draft.model is None:
            continue
        family = draft.model.family
        if family in families:
            for path, message in families[family](draft.model):
                draft.refuse(path, message)
            continue
        near = suggestion(family, sorted(families))
        known = ", ".join(sorted(families))
        draft.refuse(("family",), f"there is no family {family}{near} (there are: {known})")


def _check_patches(draft: EntryDraft[Recipe]) -> None:
    """A pull request, or a range of commits, is of a repository: its own, or the source's."""
    if draft.model is None or isinstance(draft.model.source, GitSource):
        return
    for index, patch in enumerate(draft.model.patch):
        kind = patch.origin.kind
        if kind in {"pull", "pick"} and not patch.origin.git:
            message = "needs git = URL: the source is no git repository"
            draft.refuse(("patch", index, kind), message)


def _check_tags(drafts: Iterable[EntryDraft[Recipe]]) -> None:
    """No other recipe has a tag of a recipe's image.

    Recipes may share a tag that moves in each of them: the recipe that is pushed last has it.
    """
    owners: dict[tuple[str, str], list[tuple[EntryDraft[Recipe], Recipe]]] = defaultdict(list)
    for draft in drafts:
        if draft.model is not None:
            image = draft.model.image
            for tag in dict.fromkeys([*image.tags, *image.moving]):
                owners[image.repository, tag].append((draft, draft.model))
    for (repository, tag), claims in owners.items():
        if len(claims) == 1 or all(tag in recipe.image.moving for _, recipe in claims):
            continue
        for draft, recipe in claims:
            others = ", ".join(other.file.name for other, _ in claims if other is not draft)
            tags = recipe.image.tags
            key = ("tags", tags.index(tag)) if tag in tags else ("moving",)
            message = (
                f"{repository}:{tag} is also a tag of {others}: change repository or tags in one "
                "of the files"
            )
            draft.refuse(("image", *key), message)


def _chain(bases: Mapping[str, BaseRecipe | None], base: str | None) -> list[str]:
    names: list[str] = []
    while base is not None and base not in names:
        names.append(base)
        recipe = bases.get(base)
        base = recipe.base if recipe else None
    return names


def _check_bases(draft: EntryDraft[Any], bases: Mapping[str, BaseRecipe | None]) -> None:
    """The bases of a recipe are there, and their chain has an end."""
    chain = _chain(bases, draft.model.base if draft.model else None)
    for name in chain:
        if name not in bases:
            message = f"there is no base {name}{suggestion(name, sorted(bases))}"
            draft.refuse(("base",), message)
    last = bases.get(chain[-1]) if chain else None
    if last is not None and last.base in chain:
        cycle = " -> ".join([*chain[chain.index(last.base) :], last.base])
        draft.refuse(("base",), f"the bases form a cycle: {cycle}")


def require_channels(entries: Iterable[Entry[Recipe]]) -> list[Entry[Recipe]]:
    """These recipes; raises ``RecipeError`` where one of them has no channel."""
    found = list(entries)
    without = sorted({entry.name for entry in found if not entry.recipe.channel})
    if without:
        raise RecipeError(
            f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no channel",
            hint='add channel = "TAG" to [track] in the recipe, and the tag to image.moving',
        )
    return found
