"""The docstrings of attributes, as the descriptions of keys in a JSON Schema.

pydantic reads them, too (``use_attribute_docstrings``), but whenever a class is made: it compiles
the source of each class again, which takes a tenth of the CPU time of a short command.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from pydantic import BaseModel


def described(schema: dict[str, Any], base: type[BaseModel]) -> dict[str, Any]:
    """A JSON Schema whose keys have the docstrings of the attributes of ``base``'s subclasses."""
    models = {each.__name__: each for each in _below(base)}
    for title, part in [(schema.get("title", ""), schema), *schema.get("$defs", {}).items()]:
        texts = _docstrings(models[title]) if title in models else {}
        for name, field in part.get("properties", {}).items():
            if name in texts and "description" not in field:
                part["properties"][name] = dict(
                    sorted([*field.items(), ("description", texts[name])])
                )
    return schema


def _below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        yield each
        yield from _below(each)


def _docstrings(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstrings below attributes, also of inherited ones, by the attribute's name."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if each is not BaseModel and issubclass(each, BaseModel):
            found |= _own_docstrings(each)
    return found


def _own_docstrings(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    (tree,) = ast.parse(inspect.getsource(model)).body
    for before, after in pairwise(tree.body if isinstance(tree, ast.ClassDef) else []):
        if not isinstance(before, ast.AnnAssign) or not isinstance(before.target, ast.Name):
            continue
        text = after.value if isinstance(after, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield before.target.id, inspect.cleandoc(text.value)
