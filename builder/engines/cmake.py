"""Family ``cmake``: any tree with one or more CMakeLists.txt and install rules."""

from __future__ import annotations

from builder.engines.family import EngineFamily


class CmakeTree(EngineFamily):
    """Each call of cmake is installed by the tree's own rules."""

    name = "cmake"
    summary = "a tree with one or more CMakeLists.txt, installed with cmake --install"
    template = "cmake.Dockerfile.j2"
    scripts = ("jobs", "reproducible", "used")
    required_tables = {"cmake": "a [[cmake]] table"}
    requires_entrypoint = True
