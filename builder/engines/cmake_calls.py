"""cmake calls: the definitions that every CUDA engine needs, and a check that none is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from builder.core.platforms import Platforms
from builder.engines.layout import LAYOUT
from builder.recipes.schema import Cmake, Recipe

Definitions = Mapping[str, str | int | bool]
"""cmake's -D options, by name."""
Command = list[str]


class DefinitionLayer(NamedTuple):
    """Definitions and their origin: "builder", "base X", "family X", "recipe", or an override."""

    origin: str
    definitions: Definitions


TOOLKIT_LIBRARIES = f"{LAYOUT.cuda}/lib64"
DRIVER_STUB = f"{TOOLKIT_LIBRARIES}/stubs"
LINKER_FLAGS = ("CMAKE_EXE_LINKER_FLAGS", "CMAKE_SHARED_LINKER_FLAGS")


# ggml/src/ggml-cpu/CMakeLists.txt of llama.cpp.
GGML_INSTRUCTIONS = {
    "GGML_SSE42": ("sse4.2",),
    "GGML_AVX": ("avx",),
    "GGML_F16C": ("f16c",),
    "GGML_FMA": ("fma",),
    "GGML_BMI2": ("bmi2",),
    "GGML_AVX2": ("avx2",),
    "GGML_AVX_VNNI": ("avxvnni",),
    "GGML_AVX512": ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
    "GGML_AVX512_VBMI": ("avx512vbmi",),
    "GGML_AVX512_VNNI": ("avx512vnni",),
    "GGML_AVX512_BF16": ("avx512bf16",),
    "GGML_AMX_TILE": ("amx-tile",),
    "GGML_AMX_INT8": ("amx-int8",),
    "GGML_AMX_BF16": ("amx-bf16",),
}
"""The options of gcc, without -m, by the definitions that set them."""
V2 = ("cx16", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2")
V3 = (*V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
LEVELS = {
    "x86-64": (),
    "x86-64-v2": V2,
    "x86-64-v3": V3,
    "x86-64-v4": (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
"""The instructions of x86-64's levels (x86-64 psABI, "Micro-Architecture Levels")."""
MARCH = re.compile(r"-march=(\S+)")
ONE_OPTION = re.compile(r"-m((?:sse|ssse|avx|amx|bmi|fma|f16c|popcnt|lzcnt|movbe)[\w.-]*)")


def instructions(definitions: Definitions, target: str) -> list[str]:
    """The instructions of the CPU that a call's code is compiled with, beside the platform's own.

    The names are gcc's: "avx2" of -mavx2, "dotprod" of -march=armv8.2-a+dotprod.  "native": all
    instructions of the machine that compiles.
    """
    flags = " ".join(str(value) for name, value in definitions.items() if "FLAGS" in name)
    machines = MARCH.findall(flags)
    found = ONE_OPTION.findall(flags)
    # Otherwise ggml chooses the code when it starts.
    if not truth(definitions.get("GGML_CPU_ALL_VARIANTS", False)):
        if truth(definitions.get("GGML_NATIVE", False)):
            machines.append("native")
        elif target == "arm64":
            machines.append(str(definitions.get("GGML_CPU_ARM_ARCH", "")))
        else:
            for name, options in GGML_INSTRUCTIONS.items():
                found += options if truth(definitions.get(name, False)) else ()
    for machine in machines:
        for part in filter(None, machine.split("+")):
            found += LEVELS.get(part, () if part.startswith("no") else (part,))
    return list(dict.fromkeys(found))


def common_layers(recipe: Recipe, platforms: Platforms) -> list[DefinitionLayer]:
    """Definitions of every CUDA engine: the GPUs of the recipe, ccache, and how to link.

    An executable links libraries that need the toolkit's or the driver's libraries. The linker
    looks for these in ``-rpath-link`` directories; ``LIBRARY_PATH`` does not help (ld(1)).
    """
    definitions: dict[str, str | int | bool] = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CUDA_ARCHITECTURES": ";".join(recipe.cuda.arch),
        "CMAKE_C_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
    }
    if platforms.cross:
        definitions["CMAKE_TOOLCHAIN_FILE"] = f"{LAYOUT.toolchains}/{platforms.triplet}.cmake"
    return [
        DefinitionLayer("builder", definitions),
        DefinitionLayer(f"base {recipe.base}", dict.fromkeys(LINKER_FLAGS, rpath_link(recipe))),
    ]


def rpath_link(recipe: Recipe) -> str:
    """The linker option that names the libraries which linked libraries need."""
    return f"-Wl,-rpath-link,{':'.join(link_directories(recipe))}"


def link_directories(recipe: Recipe) -> list[str]:
    """``-rpath-link`` directories of a cmake call: the toolkit, with VMM also the driver stub."""
    return [TOOLKIT_LIBRARIES, *([DRIVER_STUB] if recipe.cuda.vmm else [])]


def _defines(word: str, name: str) -> bool:
    return word.startswith((f"-D{name}=", f"-D{name}:", f"cmake.define.{name}="))


def link_faults(arguments: Sequence[str], recipe: Recipe, no_vmm: str | None) -> Iterator[str]:
    """Definitions that a command lacks, without which its cmake call would not link correctly.

    Commands that configure no cmake have no faults. ``no_vmm`` is the definition that keeps the
    driver library out of the family's engines.
    """
    configures = "-S" in arguments and "cmake" in arguments
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


Given = tuple[tuple[str | int, ...], str, str | int | bool]
"""A definition of a recipe: the path of its key, its name and its value."""
ARCHITECTURES = "CMAKE_CUDA_ARCHITECTURES"
NO_VMM = re.compile(r"\w*CUDA_NO_VMM")
FLAGS = re.compile(r"CMAKE_(?:C|CXX|CUDA)_FLAGS(?:_[A-Z]+)?")
FOR_THIS_CPU = re.compile(r"-m(?:arch|cpu)=native\b")
FOR_A_GPU = re.compile(r"(?<!\S)--?(?:arch|code|gencode|gpu-(?:architecture|code)|generate-code)\b")
_FALSE = re.compile(r"0|OFF|NO|FALSE|N|IGNORE|NOTFOUND|.*-NOTFOUND|", re.IGNORECASE)
_BACKEND = "cmake.define."
_ARGUMENT = re.compile(r"-D\s*([\w.]+)(?::\w+)?=([^;\s]*)")


def truth(value: str | int | bool) -> bool:
    """Whether cmake's if() takes a value as true (cmake-commands(7), "if", constants)."""
    return _FALSE.fullmatch(definition_value(value)) is None


def same(one: str | int | bool, other: str | int | bool) -> bool:
    """Whether cmake takes both values alike: "0" and "no" are false."""
    return truth(one) is other if isinstance(other, bool) else str(one) == str(other)


def given(recipe: Recipe) -> Iterator[Given]:
    """The definitions that a recipe gives: of ``[[cmake]]``, and of a Python package's backend.

    scikit-build-core takes them as ``cmake.define.NAME``, or as arguments in ``cmake.args``.
    """
    for index, call in enumerate(recipe.cmake):
        for name, value in call.define.items():
            yield ("cmake", index, "define", name), name, value
        for place, each in enumerate(call.override):
            yield ("cmake", index, "override", place, "value"), each.name, each.value
    if recipe.python is not None:
        for name, value in recipe.python.define.items():
            yield ("python", "define", name), name, value
        for key, value in recipe.python.config.items():
            if key.startswith(_BACKEND):
                yield ("python", "config", key), key.removeprefix(_BACKEND), value
            elif key == "cmake.args":
                for name, word in _ARGUMENT.findall(str(value)):
                    yield ("python", "config", key), name, word


def contradictions(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Definitions against other keys of the recipe, or for the machine that compiles."""
    for path, name, value in given(recipe):
        if name == ARCHITECTURES:
            yield path, "is set by the builder: use arch in [cuda]"
        elif NO_VMM.fullmatch(name) and truth(value) is recipe.cuda.vmm:
            shown = str(recipe.cuda.vmm).lower()
            yield path, f"contradicts vmm = {shown} in [cuda]: the probes follow vmm"
        elif FLAGS.fullmatch(name) and FOR_THIS_CPU.search(str(value)):
            yield (
                path,
                "compiles for the CPU of the machine that builds, and other CPUs cannot run it",
            )
        elif FLAGS.fullmatch(name) and "CUDA" in name and FOR_A_GPU.search(str(value)):
            yield path, "chooses the GPU code, which follows from arch in [cuda]"


def merged(layers: Sequence[DefinitionLayer]) -> Definitions:
    """One set of definitions; later layers win."""
    return {name: value for layer in layers for name, value in layer.definitions.items()}


def configure(number: int, call: Cmake, layers: Sequence[DefinitionLayer]) -> Command:
    """The command that configures cmake call NUMBER, in ``/build/NUMBER``.

    It fails where the project does not use a definition of the recipe.  A family's may be unused:
    see ``llama_cpp``.
    """
    definitions = merged(layers).items()
    own = [*call.define, *(each.name for each in call.override)]
    return [
        *(["/inside/used", str(number), *own, "--"] if own else []),
        *("cmake", "-G", "Ninja", "-S", f"/src/{call.source}", "-B", f"/build/{number}"),
        *(f"-D{name}={definition_value(value)}" for name, value in definitions),
    ]


def build(number: int, call: Cmake) -> Command:
    """The command that compiles the targets of cmake call NUMBER; all, where it names none."""
    targets = ["--target", *call.targets] if call.targets else []
    return ["cmake", "--build", f"/build/{number}", *targets]


def definition_value(value: str | int | bool) -> str:
    """A value as cmake spells it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)
