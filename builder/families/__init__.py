"""The families: how each kind of engine, and each kind of base, is made.

A family is a module that satisfies ``EngineFamily`` or ``BaseFamily`` and an entry in one of the
two dicts below; its Dockerfile is a template of the name that it gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from builder.families import (
    artifact,
    cmake,
    cuda_wheels,
    debian_root,
    ggml_python,
    llama_cpp,
    published,
    python_sdist,
    python_wheels,
    vllm_overlay,
)
from builder.families.compiling import Layer
from builder.families.package_paths import PackagePaths
from builder.platforms import Platforms
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import BaseRecipe, Recipe

Findings = Iterable[tuple[tuple[str | int, ...], str]]
"""The path of each key that breaks a rule of the family, and what is wrong with it."""


class EngineFamily(Protocol):
    """How one kind of engine is made."""

    TEMPLATE: str
    SCRIPTS: tuple[str, ...]
    """Files of ``dockerfiles/scripts/`` that the stages run."""
    STANDS_ON: tuple[str, ...]
    """Stages that the base must have."""
    NO_VMM: str | None
    """The definition that every cmake call of its trees needs where [cuda] vmm is false."""
    INHERITS: bool
    """Whether the image is the base's with something laid over it, and starts as the base's."""

    def scope(self, recipe: Recipe) -> PackagePaths | None:
        """What patches of a repository are cut to; None: the source is all of it."""
        ...

    def check(self, recipe: Recipe) -> Findings:
        """What the recipe lacks, or says to no effect."""
        ...

    def complete(self, recipe: Recipe) -> Recipe:
        """The recipe with what the family knows of each of its engines: image and probes."""
        ...

    def packages(
        self, recipe: Recipe, folder: Path, platforms: Platforms
    ) -> Mapping[str, tuple[PinnedFile, ...]]:
        """Files of PyPI by the named context that holds them; lock paths start at ``folder``."""
        ...

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Sequence[Sequence[Layer]]:
        """For each cmake invocation its definitions, in layers: who says what; later ones win."""
        ...

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        """What the template sees beside the recipe."""
        ...


class BaseFamily(Protocol):
    """How one kind of base is made."""

    TEMPLATE: str
    SCRIPTS: tuple[str, ...]
    STANDS_ON: tuple[str, ...]
    """Stages that the base below must have."""
    STAGES: Mapping[str, str]
    """The stages that become images, named ``base-STAGE`` in what builds on them, with the
    compression of their layers: gzip for what is shipped, zstd for what stays in the engine."""

    def check(self, recipe: BaseRecipe) -> Findings:
        """What the recipe lacks, or says to no effect."""
        ...

    def packages(
        self, recipe: BaseRecipe, folder: Path, platforms: Platforms
    ) -> Mapping[str, tuple[PinnedFile, ...]]:
        """Files of PyPI by the named context that holds them; lock paths start at ``folder``."""
        ...

    def variables(self, recipe: BaseRecipe, platforms: Platforms) -> Mapping[str, Any]:
        """What the template sees beside the recipe."""
        ...


ENGINES: dict[str, EngineFamily] = {
    "artifact": artifact,
    "cmake": cmake,
    "llama-cpp": llama_cpp,
    "ggml-python": ggml_python,
    "python-sdist": python_sdist,
    "vllm-overlay": vllm_overlay,
}

BASES: dict[str, BaseFamily] = {
    "cuda-wheels": cuda_wheels,
    "debian-root": debian_root,
    "published": published,
    "python-wheels": python_wheels,
}
