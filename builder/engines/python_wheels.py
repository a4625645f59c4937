"""Base family ``python-wheels``: Python packages from locked wheels, in a virtual environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from builder.core.platforms import Platforms
from builder.engines.debian import StagePackages, running
from builder.engines.family import BaseFamily, Finding, Packages, native_lock
from builder.recipes.base import BaseRecipe


class PythonWheels(BaseFamily):
    """The environment stands on a CUDA runtime."""

    name = "python-wheels"
    summary = "Python packages from locked wheels, in a virtual environment"
    template = "python-wheels.Dockerfile.j2"
    scripts = ("diet.py", "reproducible")
    requires_stages = ("devel", "system")
    stages = {"runtime": "gzip"}
    requires_base = "a CUDA runtime"
    required_tables = {"python": "a [python] table: lock, requirements"}

    def rules(self, recipe: BaseRecipe) -> Iterator[Finding]:
        """Keys that need others."""
        python = recipe.python
        if python and python.dead and not python.capabilities:
            yield ("python", "dead"), "needs capabilities: the cards that the image is for"
        if python and python.nvcc and not any("nvcc" in each for each in python.requirements):
            yield ("python", "nvcc"), 'needs the requirement "cuda-toolkit[nvcc]"'

    def packages(self, recipe: BaseRecipe, folder: Path, platforms: Platforms) -> Packages:
        """The wheels of its lock."""
        return {"wheels": native_lock(recipe, folder, platforms).runtime}

    def debian(self, recipe: BaseRecipe, platforms: Platforms) -> list[StagePackages]:
        """The packages of its only stage."""
        return [running("runtime", "runtime", recipe.runtime.packages, platforms)]
