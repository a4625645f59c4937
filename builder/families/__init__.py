"""The families: how each kind of engine, and each kind of base, is made.

A family is an ``EngineFamily`` or ``BaseFamily`` value, listed below, and a Dockerfile template.
"""

from __future__ import annotations

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
from builder.families.family import BaseFamily, EngineFamily

__all__ = ["BASES", "ENGINES", "BaseFamily", "EngineFamily"]

ENGINES: dict[str, EngineFamily] = {
    family.name: family
    for family in (
        artifact.FAMILY,
        cmake.FAMILY,
        llama_cpp.FAMILY,
        ggml_python.FAMILY,
        python_sdist.FAMILY,
        vllm_overlay.FAMILY,
    )
}

BASES: dict[str, BaseFamily] = {
    family.name: family
    for family in (
        cuda_wheels.FAMILY,
        debian_root.FAMILY,
        published.FAMILY,
        python_wheels.FAMILY,
    )
}
