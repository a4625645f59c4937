"""Family ``ggml-python``: programs with ggml inside, from several cmake calls, and a server in
Python that starts them.

The programs of each cmake call are installed with the call's own libraries beside them, in the
directory in which the server looks for them: two calls may build libraries of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from builder.families.cmake_calls import Command, Definitions
from builder.families.family import EngineFamily, Finding, Packages, native_lock
from builder.families.layout import LAYOUT
from builder.families.llama_cpp import ALWAYS, COMPILED, NO_VMM, cpu_definitions, machine_code
from builder.platforms import Platforms
from builder.recipes.schema import Cmake, Recipe, RecipeImage


def _rules(recipe: Recipe) -> Iterator[Finding]:
    if recipe.python is not None and (recipe.python.define or recipe.python.config):
        yield ("python",), "the family ggml-python compiles no Python package"
    yield from _port(recipe.image)
    places: set[str] = set()
    for index, call in enumerate(recipe.cmake):
        if not call.targets:
            yield ("cmake", index), "name the targets: the default build of some trees downloads"
        if _place(call) in places:
            yield ("cmake", index), f"two cmake calls would put their libraries in {_place(call)}"
        places.add(_place(call))
        for name in call.define:
            if name == NO_VMM:
                yield ("cmake", index, "define", name), "is set by the family: use vmm in [cuda]"


def _port(image: RecipeImage) -> Iterator[Finding]:
    """The server's default port is not known, so the image must pass its own port."""
    passed = (*image.entrypoint, *image.command, *image.env.values())
    if image.port and str(image.port) not in passed:
        message = f"pass {image.port} to the server in entrypoint, command or env"
        yield ("image", "port"), message


def _place(call: Cmake) -> str:
    return f"{LAYOUT.engine}/{call.place or 'bin'}"


def _packages(recipe: Recipe, folder: Path, platforms: Platforms) -> Packages:
    return {"runtime-wheels": native_lock(recipe, folder, platforms).runtime}


def _definitions(recipe: Recipe, platforms: Platforms) -> Definitions:
    return {
        **ALWAYS,
        **cpu_definitions(platforms),
        "LLAMA_BUILD_UI": False,  # another server hides llama-server's page
        "LLAMA_BUILD_WEBUI": False,
        NO_VMM: not recipe.cuda.vmm,
    }


def _install(recipe: Recipe, platforms: Platforms, number: int, call: Cmake) -> list[Command]:  # noqa: ARG001
    command = ["python3", "/inside/collect.py", "--everywhere", "--strip"]
    command.append(f"{platforms.triplet}-strip")
    return [[*command, f"/build/{number}", _place(call), *call.targets]]


FAMILY = EngineFamily(
    name="ggml-python",
    summary="programs with ggml inside, from several cmake calls, and a server in Python",
    template="ggml-python.Dockerfile.j2",
    scripts=("jobs", "collect.py", "reproducible", "used"),
    no_vmm=NO_VMM,
    machine_code=machine_code,
    required_tables={
        "cmake": "[[cmake]] tables",
        "python": "a [python] table: lock, requirements",
    },
    tables=("layout",),
    requires_entrypoint=True,
    rules=_rules,
    packages=_packages,
    debian_build=("patchelf",),
    debian_runtime=("python3",),
    definitions=_definitions,
    fixed=ALWAYS,
    relied=COMPILED,
    install=_install,
)
