"""Tables of results, ``compilers/RECIPE.toml``, and threads about compilers, ``threads.toml``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from builder.core.farm import folder
from builder.core.files import atomic_write
from builder.recipes.catalog import read_model
from builder.recipes.fields import THREAD, Model, Text

Result = float | str
"""The normalized mean square error, or how the kernel ended."""
NOT_RUN = "not "
"""Begins a result that says nothing about the compiler: not run, not computed, not compiled."""

FOLDER = "compilers"
THREADS = "threads.toml"
LIMIT = 5e-4
"""The largest error that ggml accepts for products of matrices (tests/test-backend-ops.cpp)."""


class Compiler(Model):
    """The results of an nvcc."""

    nvcc: Text
    """Version."""
    released: Text
    """Day on which the package index got it."""
    nmse: dict[str, float]
    """Normalized mean square error, by type."""
    ended: dict[str, Text] = Field(default_factory=dict)
    """How a kernel ended that gave no numbers, by type."""

    @property
    def results(self) -> Mapping[str, Result]:
        """The result of each type."""
        return {**self.nmse, **self.ended}

    @property
    def wrong(self) -> tuple[str, ...]:
        """The types that it miscompiles."""
        return tuple(sorted(name for name, each in self.results.items() if is_wrong(each)))


def is_wrong(result: Result) -> bool:
    """Whether a result shows a wrong kernel: an error above the limit, or a fault."""
    if isinstance(result, str):
        return not result.startswith(NOT_RUN)
    return not result <= LIMIT


class Table(Model):
    """All results for the tree of a recipe."""

    recipe: Text
    source: Text
    """Repository, or the origin of other sources."""
    commit: Text | None = None
    committed: Text | None = None
    """Day of the commit."""
    tried: Text
    """Day."""
    architecture: Text
    not_compared: dict[str, Text] = Field(default_factory=dict)
    """Why, by type."""
    compiler: list[Compiler]

    @property
    def types(self) -> tuple[str, ...]:
        """The types of all rows, by name; the kernels with a name of two words come last."""
        names = {name for each in self.compiler for name in each.results}
        return tuple(sorted(names, key=lambda name: (" " in name, name.lower())))


class Thread(Model):
    """A thread of GitHub about a compiler, and the findings of the tables about it."""

    thread: Annotated[str, StringConstraints(pattern=THREAD)]
    about: Text
    nvcc: list[Text]
    """Versions."""
    types: list[Text]
    answer: Text | None = None


class _Threads(Model):
    thread: list[Thread]


def load(root: Path) -> tuple[Table, ...]:
    """All tables, by name of the recipe.  Raises ``RecipeError`` where a file is invalid."""
    files = sorted(file for file in folder(root, FOLDER).glob("*.toml") if file.name != THREADS)
    return tuple(read_model(file, Table) for file in files)


def threads(root: Path) -> tuple[Thread, ...]:
    """The threads.  Raises ``RecipeError`` where the file is invalid."""
    file = folder(root, FOLDER) / THREADS
    return tuple(read_model(file, _Threads).thread) if file.is_file() else ()


def about(found: Iterable[Thread], compiler: Compiler) -> list[Thread]:
    """The threads about the version of a compiler and a type that it miscompiles."""
    wrong = {*compiler.wrong}
    return [each for each in found if compiler.nvcc in each.nvcc and wrong & {*each.types}]


def warnings(root: Path) -> dict[str, list[str]]:
    """What the tables say against versions of nvcc, by version.

    Raises ``RecipeError`` where a file is invalid.
    """
    found: dict[str, list[str]] = {}
    known = threads(root)
    for table in load(root):
        for each in table.compiler:
            if each.wrong:
                named = ", ".join(thread.thread for thread in about(known, each))
                message = f"nvcc {each.nvcc} miscompiles {', '.join(each.wrong)} of {table.recipe}"
                found.setdefault(each.nvcc, []).append(f"{message}{f': {named}' if named else ''}")
    return found


def write(table: Table, root: Path) -> Path:
    """Write a table to its file, and return the file.

    Raises ``SpaceError`` where the disk is full, ``OSError`` where the directory is not writable.
    """
    file = root / FOLDER / f"{table.recipe}.toml"
    with atomic_write(file) as new:
        new.write_text(_text(table), "utf-8")
    return file


def _text(table: Table) -> str:
    lines = [f"# Made by `builder compilers {table.recipe} --save`."]
    for name, value in table.model_dump(exclude={"not_compared", "compiler"}).items():
        lines += [f"{name} = {_value(value)}"] if value is not None else []
    lines += _section("[not_compared]", table.not_compared)
    for each in table.compiler:
        lines += ["", "[[compiler]]", f"nvcc = {_value(each.nvcc)}"]
        lines += [f"released = {_value(each.released)}"]
        lines += _section("[compiler.nmse]", each.nmse, always=True)
        lines += _section("[compiler.ended]", each.ended)
    return "\n".join(lines) + "\n"


def _section(title: str, values: Mapping[str, Any], *, always: bool = False) -> list[str]:
    if not values and not always:
        return []
    return ["", title, *(f"{json.dumps(name)} = {_value(each)}" for name, each in values.items())]


def _value(value: Any) -> str:
    """A basic string or a float of TOML; JSON escapes as TOML does."""
    return f"{value:.1e}" if isinstance(value, float) else json.dumps(value)
