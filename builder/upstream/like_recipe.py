"""The settings of a recipe that a new recipe takes over, and the settings that it leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from builder.recipes.draft import DraftTable, Line, lines_of
from builder.recipes.schema import GitSource, OptionProbe, Recipe

TABLES = ("cuda", "python", "layout", "artifact", "debian", "serve", "budget", "build")
OF_IMAGE = ("entrypoint", "command", "port", "health", "env", "user", "compression")
DIGITS = re.compile(r"\b[0-9a-f]{7,40}\b")
COMMIT = re.compile(r"\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,40}\b")


def tables(like: Recipe) -> dict[str, list[DraftTable]]:
    """The tables that a recipe of the same kind takes over, by name.

    Values that name a commit or the version are left out: see ``left_out``.
    """
    values = like.model_dump(exclude_unset=True)
    found = {
        name: [DraftTable(f"[{name}]", lines_of(values[name]))] for name in TABLES if name in values
    }
    found["cmake"] = [*_calls(like, values.get("cmake", []))]
    named = f"as in {like.name}; the smoke test shows whether it holds here"
    probes = [probe for probe in values.get("probe", []) if not _names_pin(probe, like)]
    found["probe"] = [
        DraftTable("[[probe]]", lines_of(probe), "" if index else f"{named[0].upper()}{named[1:]}.")
        for index, probe in enumerate(probes)
    ]
    return found


def option_probes(like: Recipe, options: frozenset[str]) -> list[DraftTable]:
    """Its probes for options that a tree has, too; their values are not compared."""
    names = [name for name in _plain_options(like) if name in options]
    above = f"Options of {like.name} that this tree has, too."
    return [
        DraftTable("[[probe]]", [Line("option", name)], "" if index else above)
        for index, name in enumerate(names)
    ]


def _plain_options(like: Recipe) -> list[str]:
    """The options that it probes without values."""
    return [
        probe.option
        for probe in like.probe
        if isinstance(probe, OptionProbe) and not (probe.has or probe.missing or probe.absent)
    ]


def image(like: Recipe) -> list[Line]:
    """The settings of the image."""
    return lines_of(like.image.model_dump(exclude_unset=True, include={*OF_IMAGE}))


def source(like: Recipe, gitlinks: tuple[str, ...]) -> list[Line]:
    """How submodules are fetched, as far as the tree has them."""
    found = like.source
    if not isinstance(found, GitSource):
        return []
    moved = {
        path: url
        for path, url in found.submodule.items()
        if any(f"{path}/".startswith(f"{link}/") for link in gitlinks)
    }
    lines = [] if found.submodules else [Line("submodules", value=False)]
    return lines + ([Line("submodule", moved)] if moved else [])


def left_out(like: Recipe, options: frozenset[str] | None) -> Iterator[str]:
    """The settings that are not taken over, each with the reason, a line each.

    ``options`` are the tree's, where the family reads it.
    """
    for patch in like.patch:
        yield f"the patch {patch.name} of {like.name}: `builder patch add --help`"
    for step in like.start:
        yield f"[[start]] {' '.join(step.run)} of {like.name}: add it if this tree needs it"
    values = like.model_dump(exclude_unset=True)
    if options is None:
        for probe in values.get("probe", []):
            if _names_pin(probe, like):
                written = json.dumps(probe)
                yield f"a probe of {like.name} that names its commit or version: {written}"
    else:
        for option in _plain_options(like):
            if option not in options:
                yield f"the probe of {option} of {like.name}: the tree does not list it"
    for name, value in _pinned_definitions(like):
        yield f"the definition {name} = {value!r} of {like.name}: it names a commit"


def _pinned_definitions(like: Recipe) -> list[tuple[str, Any]]:
    pairs = [pair for call in like.cmake for pair in call.define.items()]
    return [(name, value) for name, value in pairs if _names_pin(value, like)]


def _calls(like: Recipe, calls: list[dict[str, Any]]) -> Iterator[DraftTable]:
    for call in calls:
        define = {
            name: value
            for name, value in call.get("define", {}).items()
            if not _names_pin(value, like)
        }
        kept = {name: value for name, value in call.items() if name != "define"}
        yield DraftTable("[[cmake]]", lines_of(kept | ({"define": define} if define else {})))


def _names_pin(value: Any, like: Recipe) -> bool:
    text = json.dumps(value)
    pin = like.source.commit if isinstance(like.source, GitSource) else ""
    version = rf"(?<![\w.]){re.escape(like.version)}(?![\w]|\.[0-9])"
    return (
        COMMIT.search(text) is not None
        or any(pin.startswith(word) for word in DIGITS.findall(text))
        or re.search(version, text) is not None
    )
