"""Writes a recipe as people write one: tables with aligned keys, and comments where they belong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 100
FIRST = "#:schema schemas/recipe.schema.json"


@dataclass(frozen=True, slots=True)
class Line:
    """A key with its value: a text, a number, a truth value, a list, or a table by name."""

    key: str
    value: Any
    comment: str = ""
    """The origin of the value, or the reason for it; written behind the value."""


@dataclass(frozen=True, slots=True)
class DraftTable:
    """A table of a recipe; tables of the same name in brackets make a list: ``[[probe]]``."""

    name: str
    """With its brackets: "[source]", "[[probe]]"; empty: the keys at the top."""
    lines: Sequence[Line]
    comment: str = ""
    """In a line of its own above the table."""


def lines_of(values: Mapping[str, Any]) -> list[Line]:
    """The lines of a table without comments."""
    return [Line(key, value) for key, value in values.items()]


def text(tables: Iterable[DraftTable]) -> str:
    """The text of a recipe; tables without lines are left out."""
    return "\n".join("\n".join(_table(table)) + "\n" for table in tables if table.lines)


def _table(table: DraftTable) -> Iterator[str]:
    if not table.name:
        yield FIRST
    if table.comment:
        yield f"# {table.comment}"
    if table.name:
        yield table.name
    long = [line for line in table.lines if isinstance(line.value, dict) and not _fits(line)]
    short = [line for line in table.lines if line not in long]
    width = max((len(_key(line.key)) for line in short), default=0)
    for line in short:
        yield from _line(line, width)
    for line in long:
        yield f"\n[{table.name.strip('[]')}.{_key(line.key)}]"
        inner = max(len(_key(key)) for key in line.value)
        for key, value in line.value.items():
            yield from _line(Line(key, value), inner)


def _line(line: Line, width: int) -> Iterator[str]:
    written = f"{_key(line.key):{width}} = {_value(line.value)}"
    comment = f"   # {line.comment}" if line.comment else ""
    if isinstance(line.value, list) and len(written) > WIDTH and len(line.value) > 1:
        yield f"{_key(line.key):{width}} = [{comment}"
        yield from _filled([f"{_value(each)}," for each in line.value])
        yield "]"
    else:
        yield written + comment


def _filled(words: list[str]) -> Iterator[str]:
    filled = "   "
    for word in words:
        if filled.strip() and len(f"{filled} {word}") > WIDTH:
            yield filled
            filled = "   "
        filled += f" {word}"
    yield filled


def _fits(line: Line) -> bool:
    return len(f"{_key(line.key)} = {_value(line.value)}") <= WIDTH


def _key(name: str) -> str:
    from tomlkit import key

    return key(name).as_string()


def _value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    from tomlkit import item

    return str(item(value).as_string())
