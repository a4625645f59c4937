"""Family ``artefact``: files that cmake makes, alone in an image from scratch.

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
TEMPLATE = "artefact.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ("jobs",)
STANDS_ON: tuple[str, ...] = ("devel",)
NO_VMM: str | None = None
INHERITS = False
scope = no_scope


def check(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """One cmake call, the files of it, and nothing that runs."""
    if len(recipe.cmake) != 1:
        yield ("family",), "the family artefact needs exactly one [[cmake]]"
    if recipe.artefact is None:
        yield ("family",), "the family artefact needs an [artefact] table: files"
    yield from unused(recipe, "artefact", "cmake", "artefact")
    names = recipe.artefact.names if recipe.artefact else []
    for index, name in enumerate(names):
        if name in names[:index]:
            yield ("artefact", "files", index), f"two files would be /{name} of the image"
    image = recipe.image
    if image.entrypoint or image.command or image.port or image.env or image.user:
        yield ("image",), "an artefact runs nothing: repository and tags are all it has"
    if recipe.debian.runtime:
        yield ("debian", "runtime"), "an artefact's image holds its files alone"


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
    return [[*layers, Layer("family artefact", flags), Layer("recipe", part.define)]]


def variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
    """The arguments of the cmake invocation, and how each file is taken."""
    assert recipe.artefact is not None
    (part,), (layers,) = recipe.cmake, definitions(recipe, platforms)
    strip = f"{GNU_TRIPLETS[platforms.target]}-strip"
    take = ["install", "-D", "-m", "0755"]
    take += ["--strip", f"--strip-program={strip}"] if recipe.artefact.loads else []
    named = zip(recipe.artefact.files, recipe.artefact.names, strict=True)
    return {
        "configure": configure(1, part, layers),
        "build": build(1, part),
        "takes": [[*take, f"/build/1/{path}", f"/out/{name}"] for path, name in named],
    }
