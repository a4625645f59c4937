"""The presets of a farm: ``presets/NAME.toml``, checked against its recipes and cards.

``presets/archive/`` has the presets of cards that no image has code for: they are read and checked,
and nothing offers them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import Problem, RecipeError, suggestion
from builder.engines import families
from builder.engines.families import load_catalog
from builder.presets import cards, command
from builder.presets.schema import TABLES, Preset
from builder.recipes.catalog import (
    BrokenEntry,
    Catalog,
    CatalogFile,
    EntryDraft,
    drafts_of,
    fields_at,
)
from builder.recipes.schema import Recipe

# Rules of presets that need more than the file: its name, its recipe, the cards, the others.

ARCHIVE = "archive"
KeyPath = tuple[str | int, ...]
Finding = tuple[KeyPath, str]  # the path of the key that breaks a rule, and the message
MOVES = "would move the server from the port of its image: leave it out"
PLACES = {f"{{{place}}}": table for place, table in TABLES.items()}
"""The tables of models, by their placeholders in arguments."""


def findings(name: str, preset: Preset, catalog: Catalog) -> Iterator[Finding]:
    """The rules that a preset breaks; the name of its file is ``name``."""
    yield from _card(name, preset, catalog)
    yield from _contexts(preset)
    yield from _unverified(preset)
    if preset.result and preset.source is None and "source" not in preset.unverified:
        yield ("source",), "results have no source: name it, or list source in [unverified]"
    entry = catalog.engines.get(preset.recipe)
    if entry is None:
        near = suggestion(preset.recipe, sorted(catalog.engines))
        yield ("recipe",), f"no recipe is named {preset.recipe}{near}"
    elif isinstance(entry, BrokenEntry):
        yield ("recipe",), f"the recipe {preset.recipe} is invalid"
    else:
        yield from _server(preset, entry.recipe)


def warnings_of(entry: PresetEntry, catalog: Catalog) -> Iterator[Problem]:
    """The options of a valid file that the images of its recipe do not suit."""
    preset = entry.parsed
    if preset is None or entry.problems or preset.cards == 1:
        return
    recipe = catalog.engine(preset.recipe).recipe
    for (option, variable, value), why in families.ENGINES[recipe.family].between_cards.items():
        for path, words in _lists(preset):
            for first, *values in command.groups(words):
                given = (*values, first.partition("=")[2])
                if command.option_of(first) == option and value in given:
                    what = f"{option} {value} on {preset.cards} cards: {why}"
                    yield entry.problem(path, what)
        if preset.serve.environment.get(variable) == value:
            place = ("serve", "environment", variable)
            yield entry.problem(place, f"{value} on {preset.cards} cards: {why}")


def _lists(preset: Preset) -> Iterator[tuple[KeyPath, list[str]]]:
    yield ("serve", "arguments"), preset.serve.arguments
    for index, result in enumerate(preset.result):
        yield ("result", index, "arguments"), result.arguments


def of_others(name: str, preset: Preset, presets: Mapping[str, Preset]) -> Iterator[Finding]:
    """The faults of the keys of a preset that name another one."""
    for key in ("loses_to", "acceptance_of"):
        wanted: str | None = getattr(preset, key)
        other = presets.get(wanted or "")
        if wanted is not None and (other is None or wanted == name):
            near = suggestion(wanted, sorted({*presets} - {name}))
            yield (key,), f"no other preset is named {wanted}{near}"
        elif other is None:
            continue
        elif key == "loses_to" and (other.card, other.cards) != (preset.card, preset.cards):
            yield (key,), f"{wanted} was run on other cards"
        elif key == "acceptance_of":
            words = [command.values_of(each.serve.arguments) for each in (preset, other)]
            drafts = [command.drafted_tokens(each) for each in words]
            if other.model.name != preset.model.name or drafts[0] != drafts[1]:
                yield (key,), f"{wanted} has another model, or drafts another number of tokens"
            elif other.acceptance is None:
                yield (key,), f"{wanted} has no acceptance"
            elif preset.acceptance is not None:
                yield (key,), "the preset has an acceptance of its own"


def _card(name: str, preset: Preset, catalog: Catalog) -> Iterator[Finding]:
    known = cards.names(catalog.root)
    if preset.card not in known and "card" not in preset.unverified:
        near = suggestion(preset.card, list(known)) or "."
        message = f"no card is named {preset.card}{near} List one without a file in [unverified]"
        yield ("card",), message
        return
    card = preset.card if preset.cards == 1 else f"{preset.cards}x{preset.card}"
    what, _, where = name.partition("@")
    if not what or where != card:
        yield ("card",), f"the file must be MODEL@{card}.toml, not {name}.toml"


def _contexts(preset: Preset) -> Iterator[Finding]:
    own, published = preset.serve.context, preset.published_context
    if published is not None and (own is None or published <= own):
        yield ("published_context",), "[serve] must have a context that is smaller"
    most = published or own
    where = "of [serve]" if published is None else "as published"
    for index, result in enumerate(preset.result):
        if most is not None and result.of_preset and (result.context or 0) > most:
            yield ("result", index, "context"), f"is larger than the context {where}, {most}"
        if published is not None and result.context is None:
            yield ("result", index), "must have its context: [serve] has a smaller one"
    counts = Counter(
        (preset.context_of(each), each.task, *each.arguments, each.differs)
        for each in preset.result
    )
    for index, result in enumerate(preset.result):
        if counts[preset.context_of(result), result.task, *result.arguments, result.differs] > 1:
            yield ("result", index), "two results have the same context and settings"


def _unverified(preset: Preset) -> Iterator[Finding]:
    for key in preset.unverified:
        path: tuple[str | int, ...] = ()
        for part in key.split("."):
            known = fields_at(Preset, path) or fields_at(Preset, (*path, 0))
            if part not in known:
                message = f"names no key of a preset{suggestion(part, known)}"
                yield ("unverified", key), message
                break
            path = (*path, part) if fields_at(Preset, path) else (*path, 0, part)


def _server(preset: Preset, recipe: Recipe) -> Iterator[Finding]:
    if families.complete(recipe).image.port is None:
        yield ("recipe",), f"{preset.recipe} is no server: its image has no port"
        return
    known = command.known_options(recipe)
    own = preset.serve.arguments
    for path, words in _lists(preset):
        yield from ((path, text) for text in _options(words, recipe))
    for name in preset.serve.environment:
        if command.ADDRESS_VARIABLE.fullmatch(name.upper()):
            yield ("serve", "environment", name), f"{MOVES[0].upper()}{MOVES[1:]}"
    contexts = [preset.serve.context, *(each.context for each in preset.result)]
    named = any("{context}" in word for word in own)
    if any(contexts) and not named and "{context}" not in known:
        yield ("serve",), "no option sets the context: name it as {context} in arguments of [serve]"
    for place, table in PLACES.items():
        named = any(place in word for word in own)
        given = getattr(preset, table) is not None
        if given and not named and place not in known:
            yield (table,), f"no option takes it: name it as {place} in arguments of [serve]"
        if named and not given:
            yield ("serve", "arguments"), f"{place} needs the table [{table}]"


def _options(words: Sequence[str], recipe: Recipe) -> Iterator[str]:
    """The faults of options: set by another key, with a "=" that the server takes not, moving the
    server from its port, or given more often than it takes them, under any names."""
    keys = {place: f"the table [{table}]" for place, table in PLACES.items()}
    keys["{context}"] = "context"
    places = command.places_by_setting(None, recipe)
    found: dict[str, list[str]] = {}
    for group in command.groups(words):
        first = group[0]
        setting, option = command.setting_of(first, recipe), command.option_of(first)
        found.setdefault(setting, []).append(option)
        moves = any(command.addresses([first]))
        if "=" in first and option and not (command.joins(recipe) or moves):
            yield f"{first} is no option of llama.cpp: its value is a word of its own"
        place = f"{{{places.get(setting, '')}}}"
        if place in keys and not any(place in word for word in group):
            yield f"{first} is set by {keys[place]}"
    yield from (f"{name} {MOVES}" for name in command.addresses(words))
    for setting, options in found.items():
        if setting and len(options) > 1 and setting not in command.repeated(recipe):
            yield f"{options[0]} is given {len(options)} times"


# The catalog.


@dataclass(frozen=True, slots=True)
class PresetEntry(CatalogFile):
    """A file, its preset where it could be parsed, and its problems."""

    parsed: Preset | None
    problems: tuple[Problem, ...] = ()
    accepted: float | None = None  # the acceptance of the preset that ``acceptance_of`` names

    @property
    def preset(self) -> Preset:
        """The preset; raises ``RecipeError`` where it has problems."""
        if self.parsed is None or self.problems:
            raise RecipeError(f"the preset {self.name} is invalid", problems=self.problems)
        return self.parsed


@dataclass(frozen=True, slots=True)
class Presets:
    """The contents of ``presets/`` and of its archive, by the file's name without its suffix."""

    entries: Mapping[str, PresetEntry]
    archived: Mapping[str, PresetEntry]

    def entry(self, name: str) -> PresetEntry:
        """The file of that name, archived or not; raises ``RecipeError`` where there is none."""
        entry = self.entries.get(name) or self.archived.get(name)
        if entry is None:
            near = suggestion(name, sorted(self.entries))
            raise RecipeError(
                f"no preset is named {name}{near}", hint="`builder list --presets` shows all"
            )
        return entry

    def preset(self, name: str) -> PresetEntry:
        """The preset of that name; raises ``RecipeError`` where there is none, or it is broken."""
        entry = self.entry(name)
        _ = entry.preset  # raises
        return entry

    def valid(self) -> list[PresetEntry]:
        """The presets without problems; none of the archive."""
        return [each for each in self.entries.values() if each.parsed and not each.problems]

    def of_recipe(self, recipe: str) -> list[PresetEntry]:
        """The presets that name a recipe, also broken ones; none of the archive."""
        entries = self.entries.values()
        return [each for each in entries if each.parsed and each.parsed.recipe == recipe]

    def problems(self) -> tuple[Problem, ...]:
        """All problems of all files."""
        files = (*self.entries.values(), *self.archived.values())
        return tuple(problem for each in files for problem in each.problems)


def load(catalog: Catalog) -> Presets:
    """Read the presets beside the recipes of ``catalog``; a broken file breaks its own entry."""
    return _checked(_drafts(catalog.root, archive=True), catalog)


def with_recipes(root: Path, others: Iterable[str] = ()) -> tuple[Presets, Catalog]:
    """The presets of the farm at ``root``, with the recipes that they name, and ``others``."""
    drafts = _drafts(root, archive=True)
    named = {draft.model.recipe for draft in drafts if draft.model is not None}
    catalog = load_catalog(root, only={*named, *others})
    return _checked(drafts, catalog), catalog


def of_recipe(root: Path, recipe: str) -> dict[str, Preset]:
    """The presets of a recipe by name, without the archive; no recipe is read."""
    found = {}
    for draft in _drafts(root):
        if draft.model is not None and draft.model.recipe == recipe:
            found[draft.name] = draft.model
        elif draft.model is None and f'"{recipe}"' in draft.text:
            raise RecipeError(f"the preset {draft.name} is invalid", problems=(*draft.problems,))
    return found


def _drafts(root: Path, *, archive: bool = False) -> list[EntryDraft[Preset]]:
    folder = root / "presets"
    old = (folder / ARCHIVE).glob("*.toml") if archive else ()
    return drafts_of((*folder.glob("*.toml"), *old), Preset)


def _checked(drafts: Sequence[EntryDraft[Preset]], catalog: Catalog) -> Presets:
    parsed = {draft.name: draft.model for draft in drafts if draft.model is not None}
    named = Counter(draft.name for draft in drafts)
    entries: dict[str, PresetEntry] = {}
    archived: dict[str, PresetEntry] = {}
    for draft in drafts:
        name, preset = draft.name, draft.model
        if preset is not None:
            for found in (*findings(name, preset, catalog), *of_others(name, preset, parsed)):
                draft.refuse(*found)
        if named[name] > 1:
            draft.refuse((), f"presets/ and presets/{ARCHIVE}/ both have this file")
        place = archived if draft.file.parent.name == ARCHIVE else entries
        other = parsed.get((preset and preset.acceptance_of) or "")
        accepted = other.acceptance if other is not None else None
        about = (tuple(draft.problems), accepted)
        place[name] = PresetEntry(name, draft.file, draft.text, preset, *about)
    return Presets(entries, archived)
