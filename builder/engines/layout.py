"""The layout of an engine's image: paths, user and label names, each stated once.

Templates see it as ``layout``; the smoke checks and the label readers import it.
``dockerfiles/scripts/start.py`` and ``overlay.py`` run inside images and cannot import it: a test
holds them equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from builder.recipes.schema import Recipe

LABEL_KEY = "builder.key"
LABEL_RECIPE_KEY = "builder.recipe-key"
"""The key without the digests that a recipe leaves open, where it leaves one open."""
LABEL_RECIPE = "builder.recipe"
LABEL_ARCHITECTURES = "builder.architectures"
LABEL_PATCHES = "builder.patches"
LABEL_BASE = "builder.base"

BASES = "builder-base"
"""The engine's repositories of bases are below it."""
REPRODUCED = "builder-reproduce"
"""Images that are built again, to be compared, are below it."""

# The OCI image specification's own names (annotations.md, "Pre-Defined Annotation Keys").
CREATED = "org.opencontainers.image.created"
REVISION = "org.opencontainers.image.revision"
VERSION = "org.opencontainers.image.version"
BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ImageLayout(NamedTuple):
    """Where an image keeps its files, and which user it runs as."""

    parent: str = "/opt"
    """The parent of ``engine``, in which a stage that compiles has nothing else."""
    engine: str = "/opt/engine"
    """Everything that the engine installs."""
    uid: int = 10001
    """User and group of our own bases."""
    home: str = "/home/engine"
    healthcheck: str = "/usr/local/bin/healthcheck"
    entrypoint: str = "/opt/builder/entrypoint"
    """The first program of every engine's image."""
    probe: str = "/opt/builder/probe"
    """The program that asks the driver, started by the entrypoint."""
    needs: str = "/opt/builder/needs"
    """The file with the image's requirements of a card and its driver."""
    start: str = "/opt/builder/start.py"
    """The engine of an image with ``[[start]]``."""
    start_plan: str = "/opt/builder/start.json"
    """The steps of ``[[start]]``, and how the base starts."""
    cuda: str = "/usr/local/cuda"
    toolkit: str = "/opt/engine/cuda"
    """CUDA's toolkit out of an engine's Python packages: a link."""
    toolchains: str = "/usr/local/share/cmake"
    """CMake toolchain files of the devel stage, by triplet of the target."""

    own: str = "/opt/builder"
    """The directory of the entrypoint and its files."""
    programs: str = "/opt/engine/bin"
    user: str = "10001:10001"
    search_path: str = f"/opt/engine/bin:{SYSTEM_PATH}"
    """PATH in an engine's image."""


LAYOUT = ImageLayout()


# The entrypoint of engine images: its command line, and the needs of its image.
#
# The program is ``dockerfiles/entrypoint``.  It looks for a card that the engine can use, and then
# becomes the engine.

SEPARATOR = "--"
"""Ends the engine's own entrypoint; the container's arguments follow."""
CPU = {"BUILDER_CPU": "1"}
"""Starts the engine without a card."""
NO_CARD = 78
"""Exit status without a usable card: EX_CONFIG of sysexits.h."""

# NVIDIA, CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA
# Minor Version Compatibility"; RTX 50xx needs 570 whatever the toolkit.
OLDEST_DRIVERS = {12: "570", 13: "580"}
"""The oldest driver for each major version of CUDA."""
FIRST_DRIVERS = {12: "570"}
"""The first driver that knows cards of a major compute capability, whatever the image has."""


def command(engine: Sequence[str]) -> list[str]:
    """The ENTRYPOINT of an image; without ``engine``, the base image's follows."""
    return [LAYOUT.entrypoint, *engine, SEPARATOR]


def oldest_driver(recipe: Recipe, cuda: str | None) -> str:
    """The oldest driver of an image with this version of CUDA, "13.0"; empty: not known."""
    return recipe.cuda.driver or OLDEST_DRIVERS.get(int((cuda or "0").partition(".")[0]), "")


def needs(
    recipe: Recipe, code: Sequence[str], cuda: str | None, instructions: Sequence[str] = ()
) -> Iterator[str]:
    """The lines of the file ``needs``; ``cuda`` is the version that the image has: "13.0".

    Without ``code`` every card is taken, without ``instructions`` every CPU; without ``cuda`` the
    variable CUDA_VERSION counts.
    """
    yield f"recipe {recipe.name}"
    yield from (f"code {name}" for name in code)
    yield from (f"cpu {name}" for name in instructions)
    if cuda is not None:
        yield f"cuda {cuda}"
    if driver := oldest_driver(recipe, cuda):
        yield f"driver {driver}"
