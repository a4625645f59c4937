"""Family ``ggml-python``: programs with ggml inside, from several cmake calls, and a server in
Python that starts them.

Each call's programs go where the server looks for them, with the libraries that the call made
beside them: two calls may make libraries of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.families.compiling import (
    Layer,
    common_layers,
    invocations,
    native_lock,
    no_scope,
    unused,
)
from builder.families.llama_cpp import ALWAYS
from builder.platforms import GNU_TRIPLETS, Platforms
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import Cmake, Image, Recipe

TEMPLATE = "ggml-python.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ("jobs", "collect.py")
STANDS_ON: tuple[str, ...] = ("devel", "runtime")
NO_VMM: str | None = "GGML_CUDA_NO_VMM"
INHERITS = False
scope = no_scope
ENGINE = "/opt/engine"


def check(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Named targets in places of their own, a lock, and an entrypoint."""
    if not recipe.cmake:
        yield ("family",), "the family ggml-python needs [[cmake]] tables"
    if recipe.python is None:
        yield ("family",), "the family ggml-python needs a [python] table: lock, requirements"
    elif recipe.python.define or recipe.python.config:
        yield ("python",), "the family ggml-python compiles no Python package"
    if not recipe.image.entrypoint:
        yield ("image",), "the family ggml-python needs an entrypoint"
    yield from _port(recipe.image)
    yield from unused(recipe, "ggml-python", "cmake", "python", "layout")
    places: set[str] = set()
    for index, part in enumerate(recipe.cmake):
        if not part.targets:
            yield ("cmake", index), "name the targets: some trees build by default what fetches"
        if _place(part.place) in places:
            yield ("cmake", index), f"two cmake calls would put their libraries in {part.place}"
        places.add(_place(part.place))
        for name in part.define:
            if name in ALWAYS or name == NO_VMM:
                yield ("cmake", index, "define", name), "is the family's: it holds for every tree"


def _port(image: Image) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The server's own default port is not known: the image must name the one that it exposes."""
    told = (*image.entrypoint, *image.command, *image.env.values())
    if image.port and str(image.port) not in told:
        message = f"{image.port} must stand in entrypoint, command or env: the server has a default"
        yield ("image", "port"), message


def _place(place: str | None) -> str:
    return f"{ENGINE}/{place or 'bin'}"


def complete(recipe: Recipe) -> Recipe:
    """Nothing is known of the server."""
    return recipe


def packages(
    recipe: Recipe, folder: Path, platforms: Platforms
) -> Mapping[str, tuple[PinnedFile, ...]]:
    """The wheels of the server."""
    assert recipe.python is not None
    return {
        "runtime-wheels": native_lock(recipe.name, folder / recipe.python.lock, platforms).runtime
    }


def definitions(recipe: Recipe, platforms: Platforms) -> Sequence[Sequence[Layer]]:
    """What every CUDA engine needs, what every tree with llama.cpp needs, then the recipe's."""
    assert NO_VMM is not None
    ours: dict[str, str | int | bool] = {
        **ALWAYS,
        "LLAMA_BUILD_UI": False,  # the page is of no use behind another server
        "LLAMA_BUILD_WEBUI": False,
        NO_VMM: not recipe.cuda.vmm,
    }
    common = [*common_layers(recipe, platforms), Layer("family ggml-python", ours)]
    return [[*common, Layer("recipe", part.define)] for part in recipe.cmake]


def variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
    """The arguments of each cmake invocation, and where its programs go."""
    command = ["python3", "/inside/collect.py", "--everywhere", "--strip"]
    command.append(f"{GNU_TRIPLETS[platforms.target]}-strip")

    def collect(number: int, part: Cmake) -> list[str]:
        return [*command, f"/build/{number}", _place(part.place), *part.targets]

    return {"invocations": invocations(recipe, definitions(recipe, platforms), collect)}
