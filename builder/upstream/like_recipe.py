"""The settings of a recipe that a new recipe takes over, and the settings that it leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from builder.core.platforms import Platforms
from builder.engines.cmake_calls import merged
from builder.engines.families import ENGINES
from builder.engines.layout import LAYOUT
from builder.recipes.draft import DraftTable, Line, lines_of
from builder.recipes.probes import LibraryProbe, OptionProbe, RunProbe
from builder.recipes.schema import Recipe
from builder.recipes.sources import GitSource
from builder.upstream.source_names import OF_CMAKE
from builder.upstream.source_tree import SourceTree

TABLES = ("cuda", "python", "layout", "artifact", "debian", "serve", "budget", "build")
OF_IMAGE = ("entrypoint", "command", "port", "health", "env", "user", "compression")
DIGITS = re.compile(r"\b[0-9a-f]{7,40}\b")
PROGRAM_MADE = re.compile(
    r"(?:(?i:\badd_executable)\s*\(\s*|(?i:\bset)\s*\(\s*TARGET\s+)\"?([\w.-]+)"
)
SWITCH = re.compile(
    r"(?i:\boption)\s*\(\s*((?:\w*_)?(?:CUDA|CUBLAS))\b(?:\s+\"[^\"]*\")?\s*(\w*)\s*\)"
)
"""An option that decides whether CUDA code is compiled: its name, and its default."""
INTERPRETERS = re.compile(r"(?:.*/)?(?:python[0-9.]*|sh|bash|env)")
COMMIT = re.compile(r"\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,40}\b")


def foreign_definitions(like: Recipe, tree: SourceTree) -> frozenset[str]:
    """The definitions of a recipe that no CMake file of a tree names.

    None where submodules may name them.  Raises ``FetchError``.
    """
    texts = "" if tree.gitlinks else tree.cmake
    names = {name for call in like.cmake for name in call.define if not OF_CMAKE.fullmatch(name)}
    return frozenset(name for name in names if texts and not _mentions(texts, name))


def tables(like: Recipe, foreign: Collection[str]) -> dict[str, list[DraftTable]]:
    """The tables that a recipe of the same kind takes over, by name.

    Values that name a commit or the version, and ``foreign`` definitions, are left out: see
    ``left_out``.
    """
    values = like.model_dump(exclude_unset=True)
    found = {
        name: [DraftTable(f"[{name}]", lines_of(values[name]))] for name in TABLES if name in values
    }
    found["cmake"] = [*_calls(like, values.get("cmake", []), foreign)]
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


def left_out(
    like: Recipe, options: frozenset[str] | None, foreign: Collection[str]
) -> Iterator[str]:
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
    for name in sorted(foreign):
        yield f"the definition {name} of {like.name}: no CMake file of this tree names it"


def lacking(recipe: Recipe, tree: SourceTree) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The keys of a recipe that names a part that no build of this tree makes, with a message.

    Nothing where a submodule is built by itself.  Raises ``FetchError``.
    """
    family = ENGINES[recipe.family]
    links = tuple(f"{link}/" for link in tree.gitlinks)
    if family.install is None or any(f"{call.source}/".startswith(links) for call in recipe.cmake):
        return
    texts = tree.cmake
    files = {path.rpartition("/")[2] for path in tree.paths}
    made = ", ".join(sorted({each[1] for each in PROGRAM_MADE.finditer(texts)})) or "none"
    seen = f"; programs in its CMake files: {made}"
    for path, name in _parts(recipe):
        plain = re.sub(r"^lib(.+?)\.(?:so|a)\b.*", r"\1", name)
        if name not in files and not any(_mentions(texts, each) for each in (name, plain)):
            yield path, f"the tree makes no {name}{seen}"
            seen = ""
    given = merged(
        [layer for layers in family.layers(recipe, Platforms("amd64")) for layer in layers]
    )
    found = {each[1]: each[2] or "OFF" for each in SWITCH.finditer(texts)}
    switches = {  # GGML_CUDA_FORCE_CUBLAS is a choice within GGML_CUDA
        name: value
        for name, value in found.items()
        if not any(name.startswith(f"{other}_") for other in found)
    }
    if switches and not any(given.get(name, value != "OFF") for name, value in switches.items()):
        message = f"CUDA code is compiled only with {' or '.join(switches)}: set it with define"
        yield ("cmake",), message


def _parts(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The programs and libraries of the engine that a recipe names, each with its key."""
    for word in recipe.image.entrypoint:
        if word.startswith(f"{LAYOUT.engine}/") and not INTERPRETERS.fullmatch(word):
            yield ("image", "entrypoint"), word.rpartition("/")[2]
    for index, file in enumerate(recipe.artifact.files if recipe.artifact else ()):
        yield ("artifact", "files", index), file.rpartition("/")[2]
    for index, probe in enumerate(recipe.probe):
        if isinstance(probe, RunProbe) and not INTERPRETERS.fullmatch(probe.run[0]):
            yield ("probe", index, "run"), probe.run[0].rpartition("/")[2]
        elif isinstance(probe, OptionProbe) and probe.program:
            yield ("probe", index, "program"), probe.program.rpartition("/")[2]
        elif isinstance(probe, LibraryProbe) and not probe.alternatives:
            yield ("probe", index, "library"), probe.library.rpartition("/")[2]


def _mentions(texts: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", texts) is not None


def _pinned_definitions(like: Recipe) -> list[tuple[str, Any]]:
    pairs = [pair for call in like.cmake for pair in call.define.items()]
    return [(name, value) for name, value in pairs if _names_pin(value, like)]


def _calls(
    like: Recipe, calls: list[dict[str, Any]], foreign: Collection[str]
) -> Iterator[DraftTable]:
    for call in calls:
        define = {
            name: value
            for name, value in call.get("define", {}).items()
            if name not in foreign and not _names_pin(value, like)
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
