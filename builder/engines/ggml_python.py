"""Family ``ggml-python``: programs with ggml inside, from several cmake calls, and a server in
Python that starts them.

The programs of each cmake call are installed with the call's own libraries beside them, in the
directory in which the server looks for them: two calls may build libraries of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from builder.core.platforms import Platforms
from builder.engines.cmake_calls import Command, Definitions
from builder.engines.family import Finding, Packages, native_lock
from builder.engines.layout import LAYOUT
from builder.engines.llama_cpp import ALWAYS, COMPILED, FROM_RECIPE, NO_VMM, Ggml, cpu_definitions
from builder.recipes.schema import Cmake, Recipe


class GgmlPython(Ggml):
    """Each call of cmake has a directory of its own."""

    name = "ggml-python"
    summary = "programs with ggml inside, from several cmake calls, and a server in Python"
    template = "ggml-python.Dockerfile.j2"
    required_tables = {
        "cmake": "[[cmake]] tables",
        "python": "a [python] table: lock, requirements",
    }
    tables = ("layout",)
    requires_entrypoint = True
    debian_build = ("patchelf",)
    debian_runtime = ("python3",)
    relied = COMPILED

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        """The calls do not overwrite each other's libraries, and the server gets its port."""
        if recipe.python is not None and (recipe.python.define or recipe.python.config):
            yield ("python",), "the family ggml-python compiles no Python package"
        image = recipe.image  # the server's default port is not known
        passed = (*image.entrypoint, *image.command, *image.env.values())
        if image.port and str(image.port) not in passed:
            message = f"pass {image.port} to the server in entrypoint, command or env"
            yield ("image", "port"), message
        places: set[str] = set()
        for index, call in enumerate(recipe.cmake):
            place = _place(call)
            if not call.targets:
                message = "name the targets: the default build of some trees downloads"
                yield ("cmake", index), message
            if place in places:
                yield ("cmake", index), f"two cmake calls would put their libraries in {place}"
            places.add(place)
            if NO_VMM in call.define:
                yield ("cmake", index, "define", NO_VMM), FROM_RECIPE[NO_VMM]

    def packages(self, recipe: Recipe, folder: Path, platforms: Platforms) -> Packages:
        """The wheels of the server."""
        return {"runtime-wheels": native_lock(recipe, folder, platforms).runtime}

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        """As for llama.cpp, without the pages of its server, which another one hides."""
        return {
            **ALWAYS,
            **cpu_definitions(platforms),
            "LLAMA_BUILD_UI": False,
            "LLAMA_BUILD_WEBUI": False,
            NO_VMM: not recipe.cuda.vmm,
        }

    def install(
        self, recipe: Recipe, platforms: Platforms, number: int, call: Cmake
    ) -> list[Command]:
        """The programs, with the libraries that they need beside them."""
        command = ["python3", "/inside/collect.py", "--everywhere", "--strip"]
        command.append(f"{platforms.triplet}-strip")
        return [[*command, f"/build/{number}", _place(call), *call.targets]]


def _place(call: Cmake) -> str:
    return f"{LAYOUT.engine}/{call.place or 'bin'}"
