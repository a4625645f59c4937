"""Base family ``python-wheels``: Python packages from locked wheels, in a virtual environment."""

from __future__ import annotations

from pathlib import Path

from builder.families.debian import StagePackages, running
from builder.families.family import BaseFamily, Packages, native_lock
from builder.platforms import Platforms
from builder.recipes.schema import BaseRecipe


def _packages(recipe: BaseRecipe, folder: Path, platforms: Platforms) -> Packages:
    return {"wheels": native_lock(recipe, folder, platforms).runtime}


def _debian(recipe: BaseRecipe, platforms: Platforms) -> list[StagePackages]:
    return [running("runtime", "runtime", recipe.runtime.packages, platforms)]


FAMILY = BaseFamily(
    name="python-wheels",
    summary="Python packages from locked wheels, in a virtual environment",
    template="python-wheels.Dockerfile.j2",
    scripts=("diet.py", "reproducible"),
    requires_stages=("devel", "runtime"),
    stages={"runtime": "gzip"},
    requires_base="a CUDA runtime",
    required_tables={"python": "a [python] table: lock, requirements"},
    packages=_packages,
    debian=_debian,
)
