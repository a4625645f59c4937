"""Family ``python-sdist``: a Python package with CUDA parts, built by its own PEP 517 backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.families import entrypoint, llama_cpp
from builder.families.cmake_calls import Definitions, definition_value, merged, truth
from builder.families.family import EngineFamily, Finding, Packages, native_lock, required
from builder.platforms import Platforms
from builder.recipes.schema import PypiSource, Recipe


def _rules(recipe: Recipe) -> Iterator[Finding]:
    if not isinstance(recipe.source, PypiSource):
        yield ("source",), "the family python-sdist takes its source from PyPI: pypi = NAME"


def _packages(recipe: Recipe, folder: Path, platforms: Platforms) -> Packages:
    locked = native_lock(recipe, folder, platforms)
    return {"build-wheels": locked.build, "runtime-wheels": locked.runtime}


def _definitions(recipe: Recipe, platforms: Platforms) -> Definitions:
    return llama_cpp.cpu_definitions(platforms) if _has_ggml(recipe) else {}


def _has_ggml(recipe: Recipe) -> bool:
    return truth(required(recipe.python, recipe).define.get("GGML_CUDA", False))


def _recipe_definitions(recipe: Recipe) -> list[Definitions]:
    """The backend calls cmake once."""
    return [required(recipe.python, recipe).define]


def _machine_code(recipe: Recipe) -> list[str]:
    """The code of ggml's library, where the package has one."""
    has_ggml = _has_ggml(recipe)
    return llama_cpp.machine_code(recipe) if has_ggml else entrypoint.machine_code(recipe)


def _variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
    """Config settings of the backend: cmake's definitions, then the recipe's own settings."""
    (layers,) = FAMILY.layers(recipe, platforms)
    settings = {f"cmake.define.{name}": value for name, value in merged(layers).items()}
    settings |= required(recipe.python, recipe).config
    arguments: list[str] = []
    for name, value in settings.items():
        arguments += ["--config-settings", f"{name}={definition_value(value)}"]
    return {"settings": arguments}


FAMILY = EngineFamily(
    name="python-sdist",
    summary="a Python package with CUDA parts, built by its own PEP 517 backend",
    template="python-sdist.Dockerfile.j2",
    scripts=("jobs", "relink.py", "reproducible"),
    required_tables={"python": "a [python] table"},
    requires_entrypoint=True,
    machine_code=_machine_code,
    rules=_rules,
    packages=_packages,
    definitions=_definitions,
    relied=llama_cpp.FOR_ANY_CPU,
    recipe_definitions=_recipe_definitions,
    variables=_variables,
)
