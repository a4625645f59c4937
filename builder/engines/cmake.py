"""Family ``cmake``: any tree with one or more CMakeLists.txt and install rules."""

from __future__ import annotations

from collections.abc import Iterator

from builder.core.platforms import Platforms
from builder.engines.cmake_calls import (
    DRIVER_STUB,
    LINKER_FLAGS,
    TOOLKIT_LIBRARIES,
    Command,
    Definitions,
    rpath_link,
)
from builder.engines.family import EngineFamily, Finding, required, with_image
from builder.recipes.schema import Cmake, Recipe


class CmakeTree(EngineFamily):
    """Each call of cmake is installed by the tree's own rules."""

    name = "cmake"
    summary = "a tree with one or more CMakeLists.txt, installed with cmake --install"
    template = "cmake.Dockerfile.j2"
    scripts = ("jobs", "reproducible", "used")
    required_tables = {"cmake": "a [[cmake]] table"}
    requires_entrypoint = True


# Family ``artifact``: files that cmake makes, alone in an image from scratch.
#
# The image runs nothing: ``docker cp`` from a container that was only created, ``COPY --from`` or
# ``builder build --output`` gets the files.


class Artifact(EngineFamily):
    """One call of cmake, whose files are the image."""

    name = "artifact"
    summary = "files that cmake makes, alone in an image from scratch"
    template = "artifact.Dockerfile.j2"
    scripts = ("jobs", "reproducible", "used")
    requires_stages = ("devel",)
    required_tables = {"artifact": "an [artifact] table: files"}
    tables = ("cmake",)
    runs = False

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        """Each file has its own name, and nothing says how the image is started."""
        if len(recipe.cmake) != 1:
            yield ("family",), "the family artifact needs exactly one [[cmake]]"
        names = recipe.artifact.names if recipe.artifact else []
        for index, name in enumerate(names):
            if name in names[:index]:
                yield ("artifact", "files", index), f"two files would be /{name} of the image"
        image = recipe.image
        if image.entrypoint or image.command or image.port or image.env or image.user:
            yield ("image",), "an artifact runs nothing: set only repository and tags"
        if recipe.debian.runtime:
            yield ("debian", "runtime"), "the image of an artifact holds only its files"

    def complete(self, recipe: Recipe) -> Recipe:
        """The default user of an image from scratch."""
        return with_image(recipe, user="root")

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        """``-L`` for the toolkit and the stubs: such trees link with ``-lcuda``."""
        directories = f"-L{TOOLKIT_LIBRARIES} -L{DRIVER_STUB}"
        return dict.fromkeys(LINKER_FLAGS, f"{directories} {rpath_link(recipe)}")

    def install(
        self, recipe: Recipe, platforms: Platforms, number: int, call: Cmake
    ) -> list[Command]:
        """Each file goes to the image's root directory."""
        artifact = required(recipe.artifact, recipe)
        command = ["install", "-D", "-m", "0755"]
        if artifact.loads:
            command += ["--strip", f"--strip-program={platforms.triplet}-strip"]
        named = zip(artifact.files, artifact.names, strict=True)
        return [[*command, f"/build/{number}/{path}", f"/layer/{name}"] for path, name in named]
