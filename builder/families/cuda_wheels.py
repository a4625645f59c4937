"""Base family ``cuda-wheels``: a CUDA toolkit and its runtime from NVIDIA's PyPI wheels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.families.family import BaseFamily, Finding, Packages
from builder.families.layout import LAYOUT
from builder.platforms import GNU_TRIPLETS, Platforms
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import BaseRecipe
from builder.recipes.schema.base import CUDA_RUNTIME


def _rules(recipe: BaseRecipe) -> Iterator[Finding]:
    if not recipe.runtime.libraries:
        yield ("runtime",), "the runtime has no CUDA library: name some in libraries"
    if recipe.wheel and recipe.cuda is None:
        message = f"the family cuda-wheels needs the wheel {CUDA_RUNTIME} for CUDA's version"
        yield ("family",), message
    for index, wheel in enumerate(recipe.wheel):
        if "amd64" not in wheel.sha256:
            yield ("wheel", index, "sha256"), f"{wheel.name} lacks amd64, the images' platform"


def _packages(recipe: BaseRecipe, folder: Path, platforms: Platforms) -> Packages:  # noqa: ARG001
    """The toolchain for the build platform, and the libraries for the target."""
    toolchain = tuple(
        PinnedFile(wheel.name, wheel.version, wheel.sha256[platforms.build])
        for wheel in recipe.wheel
        if platforms.build in wheel.sha256
    )
    libraries = tuple(
        PinnedFile(wheel.name, wheel.version, wheel.sha256[platforms.target])
        for wheel in recipe.wheel
        if wheel.library
    )
    return {"wheels": toolchain} | ({"target-wheels": libraries} if platforms.cross else {})


def _variables(recipe: BaseRecipe, platforms: Platforms) -> Mapping[str, Any]:
    contexts = ["wheels", *(["target-wheels"] if platforms.cross else [])]
    assemble = ["python3", "/inside/assemble_cuda.py", "--root", LAYOUT.cuda]
    assemble += ["--stub-compiler", f"{GNU_TRIPLETS[platforms.target]}-gcc"]
    assemble += ["--staging", "/staging"]
    for context in contexts:
        assemble += ["--wheels", f"/{context}"]
    for library in recipe.runtime.libraries:
        assemble += ["--runtime", library]
    cross = recipe.devel.cross if platforms.cross else []
    return {
        "devel_packages": [*recipe.devel.packages, *cross],
        "foreign": platforms.target if platforms.cross else None,
        "contexts": contexts,
        "assemble": assemble,
        "cuda": recipe.cuda,
    }


FAMILY = BaseFamily(
    name="cuda-wheels",
    summary="a CUDA toolkit and its runtime from NVIDIA's PyPI wheels",
    template="cuda-wheels.Dockerfile.j2",
    scripts=("assemble_cuda.py", "healthcheck", "jobs"),
    requires_stages=("root",),
    stages={"devel": "zstd", "runtime": "gzip"},
    requires_base="its Debian root",
    required_tables={"wheel": "[[wheel]] tables"},
    rules=_rules,
    packages=_packages,
    variables=_variables,
)
