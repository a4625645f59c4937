"""Family ``artifact``: files that cmake makes, alone in an image from scratch.

The image runs nothing: ``docker create`` and ``docker cp``, a ``COPY --from`` or
``builder build --output`` take the files out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.families.compiling import (
    DRIVER_STUB,
    LINKER_FLAGS,
    TOOLKIT_LIBRARIES,
    Layer,
    build,
    common_layers,
    configure,
    merged,
    no_packages,
    no_scope,
    unused,
)
from builder.platforms import GNU_TRIPLETS, Platforms
from builder.recipes.schema import Image, Recipe

packages = no_packages
TEMPLATE = "artifact.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ("jobs",)
STANDS_ON: tuple[str, ...] = ("devel",)
NO_VMM: str | None = None
INHERITS = False
scope = no_scope


def check(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """One cmake call, the files of it, and nothing that runs."""
    if len(recipe.cmake) != 1:
        yield ("family",), "the family artifact needs exactly one [[cmake]]"
    if recipe.artifact is None:
        yield ("family",), "the family artifact needs an [artifact] table: files"
    yield from unused(recipe, "artifact", "cmake", "artifact")
    names = recipe.artifact.names if recipe.artifact else []
    for index, name in enumerate(names):
        if name in names[:index]:
            yield ("artifact", "files", index), f"two files would be /{name} of the image"
    image = recipe.image
    if image.entrypoint or image.command or image.port or image.env or image.user:
        yield ("image",), "an artifact runs nothing: repository and tags are all it has"
    if recipe.debian.runtime:
        yield ("debian", "runtime"), "an artifact's image holds its files alone"


def complete(recipe: Recipe) -> Recipe:
    """Nobody runs it."""
    image = Image.model_validate(recipe.image.model_dump() | {"user": "root"})
    return recipe.model_copy(update={"image": image})


def definitions(recipe: Recipe, platforms: Platforms) -> Sequence[Sequence[Layer]]:
    """What every CUDA engine needs; the toolkit and the stubs are also looked through for what
    the tree names as ``-lcuda``."""
    layers = common_layers(recipe, platforms)
    before = merged(layers)
    flags = {name: f"-L{TOOLKIT_LIBRARIES} -L{DRIVER_STUB} {before[name]}" for name in LINKER_FLAGS}
    (part,) = recipe.cmake
    return [[*layers, Layer("family artifact", flags), Layer("recipe", part.define)]]


def variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
    """The arguments of the cmake invocation, and how each file is taken."""
    assert recipe.artifact is not None
    (part,), (layers,) = recipe.cmake, definitions(recipe, platforms)
    strip = f"{GNU_TRIPLETS[platforms.target]}-strip"
    take = ["install", "-D", "-m", "0755"]
    take += ["--strip", f"--strip-program={strip}"] if recipe.artifact.loads else []
    named = zip(recipe.artifact.files, recipe.artifact.names, strict=True)
    return {
        "configure": configure(1, part, layers),
        "build": build(1, part),
        "takes": [[*take, f"/build/1/{path}", f"/out/{name}"] for path, name in named],
    }
