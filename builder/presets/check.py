"""Rules of presets that need more than the file: its name, its recipe, the cards, the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from builder import families
from builder.presets import command
from builder.presets.model_files import TABLES
from builder.presets.schema import Preset
from builder.recipes.catalog import BrokenEntry, Catalog
from builder.recipes.parse import fields_at, suggestion
from builder.recipes.schema import Recipe
from builder.simulator import cards

Finding = tuple[tuple[str | int, ...], str]
"""The path of the key that breaks a rule, and the message."""
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


def doubts(preset: Preset, recipe: Recipe) -> Iterator[Finding]:
    """Options that the recipe's images do not suit."""
    if preset.cards == 1:
        return
    for (option, variable, value), why in families.ENGINES[recipe.family].between_cards.items():
        lists = {("serve", "arguments"): preset.serve.arguments}
        for index, result in enumerate(preset.result):
            lists["result", index, "arguments"] = result.arguments  # type: ignore[index]
        for path, words in lists.items():
            for group in command.groups(words):
                if command.option_of(group[0]) == option and value in (
                    *group,
                    group[0].partition("=")[2],
                ):
                    yield path, f"{option} {value} on {preset.cards} cards: {why}"
        if preset.serve.environment.get(variable) == value:
            yield ("serve", "environment", variable), f"{value} on {preset.cards} cards: {why}"


def losses(presets: Mapping[str, Preset]) -> Iterator[tuple[str, Finding]]:
    """The presets whose ``loses_to`` names none on the same card, with that problem."""
    for name, preset in presets.items():
        better = preset.loses_to
        if better is None:
            continue
        other = presets.get(better)
        if other is None or better == name:
            near = suggestion(better, sorted({*presets} - {name}))
            yield name, (("loses_to",), f"no other preset is named {better}{near}")
        elif (other.card, other.cards) != (preset.card, preset.cards):
            yield name, (("loses_to",), f"{better} was run on other cards")


def _card(name: str, preset: Preset, catalog: Catalog) -> Iterator[Finding]:
    """The card is known, or listed as unverified, and the name of the file ends in it."""
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
            yield (
                ("result", index),
                "must have its context: [serve] has a smaller one",
            )
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
    """The options agree with each other, and the recipe's server accepts them."""
    if families.complete(recipe).image.port is None:
        yield ("recipe",), f"{preset.recipe} is no server: its image has no port"
        return
    known = command.known_options(recipe)
    yield from _set_elsewhere(preset, recipe)
    yield from _addresses(preset)
    contexts = [preset.serve.context, *(each.context for each in preset.result)]
    named = any("{context}" in word for word in preset.serve.arguments)
    if any(contexts) and not named and "{context}" not in known:
        message = "no option sets the context: name it as {context} in arguments of [serve]"
        yield ("serve",), message
    yield from _twice(("serve", "arguments"), preset.serve.arguments, recipe)
    for index, result in enumerate(preset.result):
        yield from _twice(("result", index, "arguments"), result.arguments, recipe)
    for place, table in PLACES.items():
        named = any(place in word for word in preset.serve.arguments)
        given = getattr(preset, table) is not None
        if given and not named and place not in known:
            message = f"no option takes it: name it as {place} in arguments of [serve]"
            yield (table,), message
        if named and not given:
            yield ("serve", "arguments"), f"{place} needs the table [{table}]"


def _set_elsewhere(preset: Preset, recipe: Recipe) -> Iterator[Finding]:
    """Options that follow from other keys, and options with "=" where the server takes none."""
    keys = {place: f"the table [{table}]" for place, table in PLACES.items()}
    keys["{context}"] = "context"
    places = command.places_by_setting(None, recipe)
    lists = {("serve", "arguments"): preset.serve.arguments}
    for index, result in enumerate(preset.result):
        lists["result", index, "arguments"] = result.arguments  # type: ignore[index]
    for path, words in lists.items():
        for group in command.groups(words):
            moves = any(command.addresses(group[:1]))  # another rule names it
            if (
                "=" in group[0]
                and command.option_of(group[0])
                and not (command.joins(recipe) or moves)
            ):
                yield path, f"{group[0]} is no option of llama.cpp: its value is a word of its own"
            place = f"{{{places.get(command.setting_of(group[0], recipe), '')}}}"
            if place in keys and not any(place in word for word in group):
                yield path, f"{group[0]} is set by {keys[place]}"


def _twice(path: tuple[str | int, ...], words: Iterable[str], recipe: Recipe) -> Iterator[Finding]:
    """Options that the server takes once, and that are given more often, under any names."""
    found: dict[str, list[str]] = {}
    for group in command.groups(words):
        found.setdefault(command.setting_of(group[0], recipe), []).append(group[0])
    for setting, options in found.items():
        if setting and len(options) > 1 and setting not in command.repeated(recipe):
            yield path, f"{command.option_of(options[0])} is given {len(options)} times"


def _addresses(preset: Preset) -> Iterator[Finding]:
    """The server's address is the image's: what publishes it, and asks for its health, knows no
    other."""
    why = "would move the server from the port of its image: leave it out"
    for name in command.addresses(preset.serve.arguments):
        yield ("serve", "arguments"), f"{name} {why}"
    for index, result in enumerate(preset.result):
        for name in command.addresses(result.arguments):
            yield ("result", index, "arguments"), f"{name} {why}"
    for name in preset.serve.environment:
        if command.ADDRESS_VARIABLE.fullmatch(name.upper()):
            yield ("serve", "environment", name), f"{why[0].upper()}{why[1:]}"
