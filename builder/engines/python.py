"""Family ``python-sdist``: a Python package with CUDA parts, built by its own PEP 517 backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.core.platforms import Platforms
from builder.engines import llama_cpp
from builder.engines.cmake_calls import Definitions, definition_value, merged, truth
from builder.engines.family import EngineFamily, Finding, Packages, native_lock, required
from builder.recipes.schema import Recipe
from builder.recipes.sources import PypiSource


class PythonSdist(EngineFamily):
    """The backend calls cmake once."""

    name = "python-sdist"
    summary = "a Python package with CUDA parts, built by its own PEP 517 backend"
    template = "python-sdist.Dockerfile.j2"
    scripts = ("jobs", "relink.py", "reproducible")
    required_tables = {"python": "a [python] table"}
    requires_entrypoint = True
    relied = llama_cpp.FOR_ANY_CPU

    def machine_code(self, recipe: Recipe) -> list[str]:
        """The code of ggml's library, where the package has one."""
        if _has_ggml(recipe):
            return llama_cpp.machine_code(recipe)
        return [*super().machine_code(recipe)]

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        """Its source is a release."""
        if not isinstance(recipe.source, PypiSource):
            yield ("source",), "the family python-sdist takes its source from PyPI: pypi = NAME"

    def packages(self, recipe: Recipe, folder: Path, platforms: Platforms) -> Packages:
        """The wheels that build the package, and those that it needs."""
        locked = native_lock(recipe, folder, platforms)
        return {"build-wheels": locked.build, "runtime-wheels": locked.runtime}

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        """The instructions of ggml's CPU code, where the package has it."""
        return llama_cpp.cpu_definitions(platforms) if _has_ggml(recipe) else {}

    def own_definitions(self, recipe: Recipe) -> list[Definitions]:
        """The definitions of the only call."""
        return [required(recipe.python, recipe).define]

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        """Config settings of the backend: cmake's definitions, then the recipe's own settings."""
        (layers,) = self.layers(recipe, platforms)
        settings = {f"cmake.define.{name}": value for name, value in merged(layers).items()}
        settings |= required(recipe.python, recipe).config
        arguments: list[str] = []
        for name, value in settings.items():
            arguments += ["--config-settings", f"{name}={definition_value(value)}"]
        return {"settings": arguments}


def _has_ggml(recipe: Recipe) -> bool:
    return truth(required(recipe.python, recipe).define.get("GGML_CUDA", False))
