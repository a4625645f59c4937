"""Family ``vllm-overlay``: a base that has vLLM installed, with patches laid over the package.

Facts of vLLM's repository: the package is ``vllm/`` and installed under that path; ``csrc/``,
``cmake/`` and everything in CUDA, C++ or Rust is compiled into shared objects; ``tests/``,
``docs/`` and the like are in no wheel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.families.compiling import Layer, no_packages, unused
from builder.families.package_paths import PackagePaths
from builder.platforms import Platforms
from builder.recipes.schema import Image, InstalledSource, Overlay, PypiSource, Recipe

packages = no_packages
TEMPLATE = "vllm-overlay.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ("overlay.py", "start.py", "healthcheck")
STANDS_ON: tuple[str, ...] = ("runtime",)
NO_VMM: str | None = None
INHERITS = True
PORT = 8000
START = "/opt/builder/start.py"

COMPILED = (
    *("csrc/*", "cmake/*", "rust/*", "CMakeLists.txt", "*/CMakeLists.txt", "setup.py"),
    *("*.cu", "*.cuh", "*.c", "*.cc", "*.cpp", "*.h", "*.hpp", "*.pyx", "*.rs", "*Cargo.toml"),
)
NEEDS = ("requirements/*", "requirements*.txt", "pyproject.toml")
ELSEWHERE = (
    *("tests/*", "docs/*", "examples/*", "benchmarks/*", "tools/*", "docker/*", ".*"),
    *("*.md", "*.rst", "mkdocs.yaml", "mkdocs.yml"),
)


def scope(recipe: Recipe) -> PackagePaths | None:
    """The package alone."""
    return PackagePaths(overlay_of(recipe).package, COMPILED, NEEDS, ELSEWHERE)


def overlay_of(recipe: Recipe) -> Overlay:
    """The package that is patched, and its version."""
    if recipe.overlay is not None:
        return recipe.overlay
    source = recipe.source
    if isinstance(source, PypiSource):
        return Overlay(package=source.pypi, version=source.version)
    return Overlay(package="vllm", version="*")


def check(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """A package and its version, and nothing that is compiled or installed."""
    if recipe.overlay is None and not isinstance(recipe.source, PypiSource):
        yield ("family",), "the family vllm-overlay needs [overlay]: package and version"
    if isinstance(recipe.source, InstalledSource) and recipe.patch:
        yield (
            ("patch",),
            "what the base has is not known before it is there: to be patched, the source must be "
            "a wheel (pypi) or a commit (git)",
        )
    package = recipe.overlay.package if recipe.overlay else ""
    if isinstance(recipe.source, InstalledSource) and recipe.source.installed != package:
        yield ("source", "installed"), f"is not the package {package} of [overlay]"
    yield from unused(recipe, "vllm-overlay", "overlay", "start")
    if recipe.debian.build or recipe.debian.runtime:
        yield ("debian",), "the family vllm-overlay installs nothing: the base brings it all"
    if recipe.start and recipe.image.entrypoint:
        yield ("image", "entrypoint"), "with [[start]] the base's own entrypoint is what follows"


def complete(recipe: Recipe) -> Recipe:
    """vLLM's port and health page; user and entrypoint are the base's, where none is said."""
    image = recipe.image
    known = {
        "port": image.port or PORT,
        "health": image.health or "health",
        "entrypoint": ["python3", START] if recipe.start else image.entrypoint,
    }
    return recipe.model_copy(update={"image": Image.model_validate(image.model_dump() | known)})


def definitions(
    recipe: Recipe,  # noqa: ARG001
    platforms: Platforms,  # noqa: ARG001
) -> Sequence[Sequence[Layer]]:
    """Nothing is compiled."""
    return []


def variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:  # noqa: ARG001
    """How the overlay is laid over the package."""
    overlay = overlay_of(recipe)
    command = ["python3", "/run/inside/overlay.py", "/run/overlay"]
    command += ["--package", overlay.package, "--version", overlay.version]
    if recipe.start:
        steps = [
            {"run": step.run, "says": step.contains, "seconds": step.seconds}
            for step in recipe.start
        ]
        command += ["--start", json.dumps(steps)]
    return {"lay_over": command}
