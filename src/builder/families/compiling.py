"""What every family that compiles CUDA tells cmake."""

from __future__ import annotations

from collections.abc import Mapping

from builder.platforms import GNU_TRIPLETS, Platforms
from builder.schema import Recipe

TOOLKIT_LIBRARIES = "/usr/local/cuda/lib64"
DRIVER_STUB = "/usr/local/cuda/lib64/stubs"


def cuda_definitions(recipe: Recipe, platforms: Platforms) -> dict[str, str | int | bool]:
    """cmake definitions that make sm_120 code, link everywhere and use the compiler cache.

    A library that needs the toolkit's or the driver's libraries is linked into executables, and
    the linker looks for what it needs in ``-rpath-link`` directories: ``LIBRARY_PATH`` does not
    help there (ld(1), "-rpath-link").
    """
    link = f"-Wl,-rpath-link,{TOOLKIT_LIBRARIES}"
    if recipe.cuda.vmm:
        link += f":{DRIVER_STUB}"
    definitions: dict[str, str | int | bool] = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CUDA_ARCHITECTURES": ";".join(recipe.cuda.arch),
        "CMAKE_C_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
        "CMAKE_EXE_LINKER_FLAGS": link,
        "CMAKE_SHARED_LINKER_FLAGS": link,
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
    return definitions


def definition_arguments(definitions: Mapping[str, str | int | bool]) -> list[str]:
    """``-D`` arguments of cmake; true and false become ON and OFF."""
    return [f"-D{name}={definition_value(value)}" for name, value in definitions.items()]


def definition_value(value: str | int | bool) -> str:
    """A value as cmake spells it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)
