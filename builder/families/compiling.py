"""What every family that compiles CUDA tells cmake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from builder.errors import RecipeError
from builder.families.package_paths import PackagePaths
from builder.platforms import GNU_TRIPLETS, Platforms
from builder.recipes import lockfile
from builder.recipes.lockfile import Lock, PinnedFile
from builder.recipes.schema import AddPatch, Cmake, InstalledSource, Recipe

Definitions = Mapping[str, str | int | bool]
"""cmake's -D, by name."""


class Layer(NamedTuple):
    """Definitions, and who says so: "builder", "family X" or "recipe"."""

    origin: str
    definitions: Definitions


TOOLKIT_LIBRARIES = "/usr/local/cuda/lib64"
DRIVER_STUB = "/usr/local/cuda/lib64/stubs"


def common_layers(recipe: Recipe, platforms: Platforms) -> list[Layer]:
    """cmake definitions that make code for the recipe's GPUs, link everywhere and are cached.

    A library that needs the toolkit's or the driver's libraries is linked into executables, and
    the linker looks for what it needs in ``-rpath-link`` directories: ``LIBRARY_PATH`` does not
    help there (ld(1), "-rpath-link").
    """
    link = f"-Wl,-rpath-link,{':'.join(link_directories(recipe))}"
    definitions: dict[str, str | int | bool] = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CUDA_ARCHITECTURES": ";".join(recipe.cuda.arch),
        "CMAKE_C_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
    }
    if platforms.cross:
        triplet = GNU_TRIPLETS[platforms.target]
        definitions |= {
            "CMAKE_SYSTEM_NAME": "Linux",
            "CMAKE_SYSTEM_PROCESSOR": triplet.split("-")[0],
            "CMAKE_C_COMPILER": f"{triplet}-gcc",
            "CMAKE_CXX_COMPILER": f"{triplet}-g++",
            "CMAKE_CUDA_HOST_COMPILER": f"{triplet}-g++",
            # arm64's char is unsigned and the device side would follow it without a word.
            "CMAKE_CUDA_FLAGS": "-Xcudafe --signed_chars",
        }
    return [
        Layer("builder", definitions),
        Layer(f"base {recipe.base}", dict.fromkeys(LINKER_FLAGS, link)),
    ]


LINKER_FLAGS = ("CMAKE_EXE_LINKER_FLAGS", "CMAKE_SHARED_LINKER_FLAGS")


def link_directories(recipe: Recipe) -> list[str]:
    """Where the linker of every cmake call must look: the toolkit, with VMM the driver's stub."""
    return [TOOLKIT_LIBRARIES, *([DRIVER_STUB] if recipe.cuda.vmm else [])]


def _defines(word: str, name: str) -> bool:
    return word.startswith((f"-D{name}=", f"-D{name}:", f"cmake.define.{name}="))


def link_faults(arguments: Sequence[str], recipe: Recipe, no_vmm: str | None) -> Iterator[str]:
    """What a command lacks so that its cmake links: nothing, where it configures nothing.

    ``no_vmm`` is the definition that keeps the driver out of what the family's trees link.
    """
    configures = "-S" in arguments and arguments[:1] == ["cmake"]
    if not configures and not any("cmake.define." in word for word in arguments):
        return
    for name in LINKER_FLAGS:
        given = [word.split("=", 1)[1] for word in arguments if _defines(word, name)]
        flags = given[-1] if given else ""
        found = {
            folder
            for option in flags.split()
            if option.startswith("-Wl,-rpath-link,")
            for folder in option.removeprefix("-Wl,-rpath-link,").split(":")
        }
        for folder in link_directories(recipe):
            if folder not in found:
                yield f"{name} of a cmake call has no -rpath-link to {folder}: the link would fail"
    if no_vmm is not None and not recipe.cuda.vmm:
        given = [word.split("=", 1)[1] for word in arguments if _defines(word, no_vmm)]
        if given[-1:] != ["ON"]:
            yield f"a cmake call without {no_vmm}=ON would link the driver: [cuda] vmm is false"


TABLES = {
    "cmake": "[[cmake]]",
    "llama": "[llama]",
    "python": "[python]",
    "overlay": "[overlay]",
    "start": "[[start]]",
    "layout": "[layout]",
    "artifact": "[artifact]",
}
"""Parts of a recipe that only some families know."""


def unused(recipe: Recipe, family: str, *known: str) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The tables of a recipe that its family, which knows those named, would pass over."""
    if "overlay" not in known and isinstance(recipe.source, InstalledSource):
        yield ("source",), f"the family {family} takes nothing that the base has installed"
    for name, table in TABLES.items():
        if name not in known and name in recipe.model_fields_set and getattr(recipe, name):
            yield (name,), f"the family {family} has no use for {table}"
    if "overlay" not in known:
        for index, patch in enumerate(recipe.patch):
            if isinstance(patch, AddPatch) and patch.add.distribution is not None:
                place = ("patch", index, "add", "distribution")
                yield place, f"the family {family} has no installed packages to add to"
    if "layout" not in known:
        for index, part in enumerate(recipe.cmake):
            if part.place is not None:
                yield ("cmake", index, "place"), f"the family {family} has places of its own"


def no_scope(recipe: Recipe) -> PackagePaths | None:  # noqa: ARG001
    """``scope`` of a family whose source is all of a tree."""
    return None


def no_packages(
    recipe: Recipe,  # noqa: ARG001
    folder: Path,  # noqa: ARG001
    platforms: Platforms,  # noqa: ARG001
) -> Mapping[str, tuple[PinnedFile, ...]]:
    """Nothing from PyPI beside the source: ``packages`` of a family that needs none."""
    return {}


def merged(layers: Sequence[Layer]) -> Definitions:
    """One set of definitions; a later layer goes before an earlier one."""
    return {name: value for layer in layers for name, value in layer.definitions.items()}


def configure(number: int, part: Cmake, layers: Sequence[Layer]) -> list[str]:
    """The cmake call that configures ``part`` of the source into ``/build/NUMBER``."""
    definitions = merged(layers).items()
    return [
        *("cmake", "-G", "Ninja", "-S", f"/src/{part.source}", "-B", f"/build/{number}"),
        *(f"-D{name}={definition_value(value)}" for name, value in definitions),
    ]


def build(number: int, part: Cmake) -> list[str]:
    """The cmake call that compiles the targets of ``part``, or everything."""
    targets = ["--target", *part.targets] if part.targets else []
    return ["cmake", "--build", f"/build/{number}", *targets]


def invocations(
    recipe: Recipe,
    definitions: Sequence[Sequence[Layer]],
    take: Callable[[int, Cmake], list[str]],
) -> list[dict[str, list[str]]]:
    """The commands of each cmake invocation; ``take`` is how what it built gets into the image."""
    parts = zip(recipe.cmake, definitions, strict=True)
    return [
        {
            "configure": configure(number, part, layers),
            "build": build(number, part),
            "take": take(number, part),
        }
        for number, (part, layers) in enumerate(parts, 1)
    ]


def native_lock(name: str, file: Path, platforms: Platforms) -> Lock:
    """The lock of the Python packages of ``name``.

    Raises ``RecipeError`` where it is wrong, or they would be installed for another platform.
    """
    if platforms.cross:
        raise RecipeError(
            f"{name} cannot be cross-compiled",
            "pip installs wheels of the platform that it runs on",
            f"build it on an engine of the platform linux/{platforms.target}",
        )
    return lockfile.read(file)


def definition_value(value: str | int | bool) -> str:
    """A value as cmake spells it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)
