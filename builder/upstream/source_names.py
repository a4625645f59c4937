"""Finds names in a recipe that its source does not have, or that name an old version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from builder.core.errors import RecipeError
from builder.engines.families import ENGINES
from builder.engines.tree import ReadableTree
from builder.recipes.base import BaseRecipe
from builder.recipes.probes import OptionProbe
from builder.recipes.schema import Recipe
from builder.recipes.sources import GitSource
from builder.sources.repository import GITLINK
from builder.sources.scratch import Scratch

KeyPath = tuple[str | int, ...]
Missing = Iterator[tuple[KeyPath, str]]
HISTORY = {"notes", "why", "drop_when", "sha256"}


def absent_submodules(recipe: Recipe, scratch: Scratch, tree: str) -> Missing:
    """The keys of submodules that the tree of a commit does not have, with a message."""
    if not isinstance(recipe.source, GitSource):
        return
    links = [item.path for item in scratch.items(tree) if item.mode == GITLINK]
    for path in recipe.source.submodule:
        if not any(f"{path}/".startswith(f"{link}/") for link in links):
            yield ("source", "submodule", path), "the source has no submodule there"


def absent_paths(recipe: Recipe, scratch: Scratch, tree: str) -> Missing:
    """The keys of directories and files that a tree does not have, with a message.

    Paths below a submodule that is not fetched count as there.
    """
    items = [*scratch.items(tree)]
    paths = {item.path for item in items}
    paths |= {path[:at] for path in paths for at, sign in enumerate(path) if sign == "/"}
    links = tuple(f"{item.path}/" for item in items if item.mode == GITLINK)
    for index, part in enumerate(recipe.cmake):
        file = f"{part.source}/CMakeLists.txt".removeprefix("./")
        if file not in paths and not file.startswith(links):
            yield ("cmake", index, "source"), f"the source has no {part.source}/CMakeLists.txt"
    for index, path in enumerate(recipe.layout.keep):
        if path not in paths and not path.startswith(links):
            yield ("layout", "keep", index), f"the source has no {path}"
    yield from ENGINES[recipe.family].absent(recipe, paths)


def lost_options(recipe: Recipe, before: ReadableTree, now: ReadableTree) -> Missing:
    """The keys of probed options, and of their values, that the source before had, with a message.

    Nothing where the family does not read both trees.  Raises ``FetchError``.
    """
    family = ENGINES[recipe.family]
    probes = [(i, each) for i, each in enumerate(recipe.probe) if isinstance(each, OptionProbe)]
    if not family.reads_trees or not probes:
        return
    try:
        old = family.draft(before, recipe.cuda)
    except RecipeError:
        return
    try:
        new = family.draft(now, recipe.cuda)
    except RecipeError as error:
        yield ("family",), "; ".join([error.what, *error.why.splitlines()])
        return
    if old is None or new is None:
        return
    for index, probe in probes:
        if probe.option in old.options - new.options and not probe.absent:
            yield ("probe", index, "option"), f"the source no longer has {probe.option}"
        elif probe.option in old.values and probe.option in new.values:
            for place, value in enumerate(probe.has):
                if value in {*old.values[probe.option]} - {*new.values[probe.option]}:
                    listed = ", ".join(new.values[probe.option])
                    message = f"{probe.option} no longer lists {value}, but {listed}"
                    yield ("probe", index, "has", place), message


CMAKE_FILE = re.compile(r"(?:^|/)CMakeLists\.txt$|\.(?:cmake|in)$")
"""configure_file reads definitions in its templates, by custom NAME.in."""
OF_CMAKE = re.compile(r"(?:CMAKE|CUDA|CUDAToolkit)_\w+|BUILD_SHARED_LIBS|\w+_(?:DIR|ROOT)")
"""Definitions that cmake itself or its modules read."""


def cmake_text(tree: ReadableTree) -> str:
    """The text of all CMake files and ``configure_file`` inputs of a tree.

    Raises ``FetchError``.
    """
    return "\n".join(tree.texts(filter(CMAKE_FILE.search, tree.paths)).values())


def lost_definitions(recipe: Recipe, before: ReadableTree, now: ReadableTree) -> Missing:
    """The keys of cmake definitions that no cmake file names now, and one did before; a message.

    Raises ``FetchError``.
    """
    own: list[tuple[KeyPath, str]] = []
    for index, call in enumerate(recipe.cmake):
        own += [(("cmake", index, "define", name), name) for name in call.define]
        for place, each in enumerate(call.override):
            own.append((("cmake", index, "override", place, "name"), each.name))
    own = [(path, name) for path, name in own if not OF_CMAKE.fullmatch(name)]
    if not own:
        return
    texts = [cmake_text(tree) for tree in (before, now)]
    for path, name in own:
        old, new = (re.search(rf"\b{re.escape(name)}\b", text) for text in texts)
        if old and not new:
            yield path, f"no cmake file of the source names {name} any more"


def naming(recipe: Recipe, version: str) -> Missing:
    """The keys whose text names a version, with a message; keys about the past are left out."""
    for path, text, _ in _names(recipe, version):
        yield path, f"still names {version}: {text!r}"


def renamed(recipe: Recipe | BaseRecipe, version: str, new: str) -> dict[KeyPath, str]:
    """The same keys, with their texts for another version."""
    return {path: whole.sub(new, text) for path, text, whole in _names(recipe, version)}


def _names(
    recipe: Recipe | BaseRecipe, version: str
) -> Iterator[tuple[KeyPath, str, re.Pattern[str]]]:
    whole = re.compile(rf"(?<![0-9.]){re.escape(version)}(?![0-9]|\.[0-9])")
    for path, text in _texts(recipe.model_dump(exclude_defaults=True), ()):
        if HISTORY.isdisjoint(path) and whole.search(text):
            yield path, text, whole


def _texts(value: Any, at: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*at, index))
