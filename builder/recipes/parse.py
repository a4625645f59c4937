"""A recipe file becomes a ``Recipe``, or a list of all its problems."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import tomli
from pydantic import BaseModel, ValidationError

from builder.core.errors import Problem, RecipeError, suggestion
from builder.core.toml_lines import line_numbers, line_of
from builder.recipes.fields import PATTERNS
from builder.recipes.patches import PATCHES
from builder.recipes.probes import PROBES
from builder.recipes.sources import SOURCES

R = TypeVar("R", bound=BaseModel)
TAGS = {*SOURCES, *PROBES, *PATCHES, "bool", "int", "str"}


@cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def fields_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """The keys that the model knows at ``path``, through nested models, lists and unions."""
    schema = _schema_of(model)

    def resolve(node: dict[str, Any]) -> list[dict[str, Any]]:
        if "$ref" in node:
            return resolve(schema["$defs"][node["$ref"].rsplit("/", 1)[1]])
        if "anyOf" in node or "oneOf" in node:
            return [
                inner
                for option in node.get("anyOf", node.get("oneOf", []))
                for inner in resolve(option)
            ]
        return [node]

    nodes = resolve(schema)
    for part in path:
        nodes = [
            inner
            for node in nodes
            for child in (
                [node.get("items")]
                if isinstance(part, int)
                else [node.get("properties", {}).get(part)]
            )
            if isinstance(child, dict)
            for inner in resolve(child)
        ]
    return sorted({key for node in nodes for key in node.get("properties", {})})


def _message(error: Any, path: tuple[str | int, ...], model: type[BaseModel]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    given = _shortened(error.get("input"))
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
    text = str(error["msg"])
    return text[:1].lower() + text[1:]


def _shortened(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _problems(
    error: ValidationError, file: Path, text: str, model: type[BaseModel]
) -> list[Problem]:
    places = line_numbers(text)
    found: dict[tuple[int, str, str], Problem] = {}
    for item in error.errors(include_url=False):
        path = _document_path(item["loc"])
        key = ".".join(_key(part) for part in path if part != "[key]")
        problem = Problem(file, line_of(path, places), key, _message(item, path, model))
        found.setdefault((problem.line, key, problem.message), problem)
    return sorted(found.values(), key=lambda problem: problem.line)


def _key(part: str | int) -> str:
    plain = isinstance(part, int) or re.fullmatch(r"[A-Za-z0-9_-]+", part)
    return str(part) if plain else json.dumps(part)


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


def parse(text: str, file: Path, model: type[R]) -> tuple[R | None, tuple[Problem, ...]]:
    """The model that a TOML text holds and no problems, or ``None`` and all its problems."""
    try:
        document = tomli.loads(text)
    except RecursionError:
        return None, (Problem(file, 1, "", "not TOML: nested too deep"),)
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        message = str(error)
        line = text.count("\n") + 1
        if "(at line " in message:
            line = int(message.split("(at line ")[1].split(",")[0])
        return None, (Problem(file, line, "", f"not TOML: {message}"),)
    try:
        return model.model_validate(document), ()
    except ValidationError as error:
        return None, tuple(_problems(error, file, text, model))


def read_model(file: Path, model: type[R], invalid: str = "") -> R:
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
