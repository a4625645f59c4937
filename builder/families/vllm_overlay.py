"""Family ``vllm-overlay``: a base that has vLLM installed, and patched files of that package.

Facts of vLLM's repository: the package is ``vllm/`` and installed under that path; ``csrc/``,
``cmake/`` and everything in CUDA, C++ or Rust is compiled into shared objects; no wheel has
``tests/``, ``docs/`` and the like.  ``vllm serve`` takes the model as its first argument
(``vllm/entrypoints/cli/serve.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from builder.families.family import EngineFamily, Finding, with_image
from builder.families.layout import LAYOUT
from builder.families.package_paths import PackagePaths
from builder.platforms import Platforms
from builder.recipes.schema import InstalledSource, Overlay, PypiSource, Recipe, Serve

PORT = 8000
COMPILED = (
    *("csrc/*", "cmake/*", "rust/*", "CMakeLists.txt", "*/CMakeLists.txt", "setup.py"),
    *("*.cu", "*.cuh", "*.c", "*.cc", "*.cpp", "*.h", "*.hpp", "*.pyx", "*.rs", "*Cargo.toml"),
)
NEEDS = ("requirements/*", "requirements*.txt", "pyproject.toml")
ELSEWHERE = (
    *("tests/*", "docs/*", "examples/*", "benchmarks/*", "tools/*", "docker/*", ".*"),
    *("*.md", "*.rst", "mkdocs.yaml", "mkdocs.yml"),
)


def _package_paths(recipe: Recipe) -> PackagePaths:
    return PackagePaths(overlay_of(recipe).package, COMPILED, NEEDS, ELSEWHERE)


def overlay_of(recipe: Recipe) -> Overlay:
    """The package that is patched, and its version."""
    if recipe.overlay is not None:
        return recipe.overlay
    source = recipe.source
    if isinstance(source, PypiSource):
        return Overlay(package=source.pypi, version=source.version)
    return Overlay(package="vllm", version="*")


def _rules(recipe: Recipe) -> Iterator[Finding]:
    if recipe.overlay is None and not isinstance(recipe.source, PypiSource):
        yield ("family",), "the family vllm-overlay needs [overlay]: package and version"
    if isinstance(recipe.source, InstalledSource) and recipe.patch:
        yield (
            ("patch",),
            "patches cannot be checked against the base's own package before the build: use a "
            "wheel (pypi) or a commit (git) as source",
        )
    package = recipe.overlay.package if recipe.overlay else ""
    if isinstance(recipe.source, InstalledSource) and recipe.source.installed != package:
        yield ("source", "installed"), f"is not the package {package} of [overlay]"
    if recipe.debian.build or recipe.debian.runtime:
        yield ("debian",), "the family vllm-overlay installs no Debian packages"
    if recipe.start and recipe.image.entrypoint:
        yield ("image", "entrypoint"), "cannot be set with [[start]]: the base's entrypoint follows"


def _complete(recipe: Recipe) -> Recipe:
    """vLLM's port and health page; user and entrypoint default to the base's."""
    image = recipe.image
    return with_image(
        recipe,
        port=image.port or PORT,
        health=image.health or "health",
        entrypoint=["python3", LAYOUT.start] if recipe.start else image.entrypoint,
    )


def _variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:  # noqa: ARG001
    overlay = overlay_of(recipe)
    command = ["python3", "/run/inside/overlay.py", "/run/overlay"]
    command += ["--package", overlay.package, "--version", overlay.version]
    if not recipe.image.entrypoint:
        command.append("--keep-start")
    if recipe.start:
        steps = [
            {"run": step.run, "says": step.contains, "seconds": step.seconds}
            for step in recipe.start
        ]
        command += ["--start", json.dumps(steps)]
    return {"overlay": command}


FAMILY = EngineFamily(
    name="vllm-overlay",
    summary="a base that has vLLM installed, and patched files of that package",
    template="vllm-overlay.Dockerfile.j2",
    scripts=("overlay.py", "start.py", "healthcheck", "reproducible"),
    requires_stages=("runtime",),
    tools="debian-trixie-gcc",
    machine_code=lambda _: (),  # it is that of the base
    extends_base=True,
    uses_ccache=False,
    serve=Serve(api_flavor="openai", arguments=["{model}", "--max-model-len", "{context}"]),
    tables=("overlay", "start"),
    rules=_rules,
    complete=_complete,
    package_paths=_package_paths,
    variables=_variables,
)
