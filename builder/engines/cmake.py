"""cmake: the definitions that every CUDA engine needs, a check that none is lost, and the families
``cmake`` (any tree with CMakeLists.txt) and ``artifact``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from builder.core.platforms import Platforms
from builder.engines.family import DefinitionLayer, EngineFamily, Finding, required, with_image
from builder.engines.layout import LAYOUT
from builder.recipes.schema import Cmake, Recipe

Value = str | int | bool
Definitions = Mapping[str, Value]
"""cmake's -D options, by name."""
Command = list[str]

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
    definitions: dict[str, Value] = {
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


Given = tuple[tuple[str | int, ...], str, Value]
"""A definition of a recipe: the path of its key, its name and its value."""
ARCHITECTURES = "CMAKE_CUDA_ARCHITECTURES"
NO_VMM = re.compile(r"\w*CUDA_NO_VMM")
FLAGS = re.compile(r"CMAKE_(?:C|CXX|CUDA)_FLAGS(?:_[A-Z]+)?")
FOR_THIS_CPU = re.compile(r"-m(?:arch|cpu)=native\b")
FOR_A_GPU = re.compile(r"(?<!\S)--?(?:arch|code|gencode|gpu-(?:architecture|code)|generate-code)\b")
_FALSE = re.compile(r"0|OFF|NO|FALSE|N|IGNORE|NOTFOUND|.*-NOTFOUND|", re.IGNORECASE)
_BACKEND = "cmake.define."
_ARGUMENT = re.compile(r"-D\s*([\w.]+)(?::\w+)?=([^;\s]*)")


def truth(value: Value) -> bool:
    """Whether cmake's if() takes a value as true (cmake-commands(7), "if", constants)."""
    return _FALSE.fullmatch(definition_value(value)) is None


def same(one: Value, other: Value) -> bool:
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


def contradictions(recipe: Recipe) -> Iterator[Finding]:
    """Definitions against other keys of the recipe, or for the machine that compiles."""
    for path, name, value in given(recipe):
        if name == ARCHITECTURES:
            yield path, "is set by the builder: use arch in [cuda]"
        elif NO_VMM.fullmatch(name) and truth(value) is recipe.cuda.vmm:
            shown = str(recipe.cuda.vmm).lower()
            yield path, f"contradicts vmm = {shown} in [cuda]: the probes follow vmm"
        elif FLAGS.fullmatch(name) and FOR_THIS_CPU.search(str(value)):
            message = (
                "compiles for the CPU of the machine that builds, and other CPUs cannot run it"
            )
            yield path, message
        elif FLAGS.fullmatch(name) and "CUDA" in name and FOR_A_GPU.search(str(value)):
            yield path, "chooses the GPU code, which follows from arch in [cuda]"


def together(number: int) -> Definitions:
    """The definitions by which a call builds programs and libraries in one directory, which may
    then be moved."""
    folder = f"/build/{number}/bin"
    return {
        "CMAKE_RUNTIME_OUTPUT_DIRECTORY": folder,
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": folder,
        "CMAKE_BUILD_WITH_INSTALL_RPATH": True,
        "CMAKE_INSTALL_RPATH": "$ORIGIN",
    }


def collect(platforms: Platforms, number: int, call: Cmake) -> Command:
    """The command that installs the targets of a call, and the libraries that were built there."""
    command = ["python3", "/inside/collect.py", "--strip", f"{platforms.triplet}-strip"]
    return [*command, f"/build/{number}/bin", LAYOUT.programs, *call.targets]


def merged(layers: Sequence[DefinitionLayer]) -> Definitions:
    """One set of definitions; later layers win."""
    return {name: value for layer in layers for name, value in layer.definitions.items()}


def definition_value(value: Value) -> str:
    """A value as cmake spells it."""
    return {True: "ON", False: "OFF"}[value] if isinstance(value, bool) else str(value)


class CmakeFamily(EngineFamily):
    """An engine from cmake calls; by itself from ``[[cmake]]``, installed by the tree's rules."""

    fixed: Definitions = {}
    """The definitions that a recipe changes only with override, and a reason."""
    relied: Mapping[str, Definitions] = {}
    """The definitions that its probes and checks rely on, by the reason: no recipe changes them."""
    must_use: Collection[str] = ()
    """Its definitions that a tree must use, where they are set."""
    installs: Collection[str] = ()
    """The values of ``install`` in [[cmake]] that a recipe may name."""

    def machine_code(self, recipe: Recipe) -> Sequence[str]:
        """As cmake makes it: 120 becomes machine code and PTX, "sm_120" and "compute_120"."""
        found = []
        for arch in recipe.cuda.arch:
            name, _, kind = arch.partition("-")
            found += [f"sm_{name}"] if kind != "virtual" else []
            found += [f"compute_{name}"] if kind != "real" else []
        return found

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        """Definitions for every cmake call of the family."""
        return {}

    def install(
        self, recipe: Recipe, platforms: Platforms, number: int, call: Cmake
    ) -> Sequence[Command]:
        """Commands that install the targets of cmake call NUMBER."""
        if call.install == "targets":
            return [collect(platforms, number, call)]
        return [["cmake", "--install", f"/build/{number}", "--prefix", LAYOUT.engine, "--strip"]]

    def layers(self, recipe: Recipe, platforms: Platforms) -> list[list[DefinitionLayer]]:
        common = common_layers(recipe, platforms)
        if family := self.definitions(recipe, platforms):
            common.append(DefinitionLayer(f"family {self.name}", family))
        if not recipe.cmake and recipe.python is not None:  # its backend calls cmake once
            return [[*common, DefinitionLayer("recipe", recipe.python.define)]]
        found = []
        for number, call in enumerate(recipe.cmake, 1):
            layers = [*common]
            if call.install == "targets":
                layers.append(DefinitionLayer("install of the targets", together(number)))
            layers.append(DefinitionLayer("recipe", call.define))
            for each in call.override:
                origin = f"recipe, over the family's: {each.why}"
                layers.append(DefinitionLayer(origin, {each.name: each.value}))
            found.append(layers)
        return found

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        """The commands of each cmake call, in ``/build/NUMBER``.

        To configure fails where the project does not use a definition of the recipe; a family's may
        be unused, see ``llama_cpp``, except the definitions of ``must_use``.
        """
        found = []
        calls = zip(recipe.cmake, self.layers(recipe, platforms), strict=True)
        for number, (call, layers) in enumerate(calls, 1):
            definitions = merged(layers).items()
            own = [*call.define, *(each.name for each in call.override)]
            own += [name for name, _ in definitions if name in self.must_use]
            configure = [
                *(["/inside/used", str(number), *own, "--"] if own else []),
                *("cmake", "-G", "Ninja", "-S", f"/src/{call.source}", "-B", f"/build/{number}"),
                *(f"-D{name}={definition_value(value)}" for name, value in definitions),
            ]
            targets = ["--target", *call.targets] if call.targets else []
            build = ["cmake", "--build", f"/build/{number}", *targets]
            install = self.install(recipe, platforms, number, call)
            found.append({"configure": configure, "build": build, "install": install})
        return {"invocations": found}

    def compiles_ggml(self, recipe: Recipe, platforms: Platforms) -> bool:
        calls = map(merged, self.layers(recipe, platforms))
        return any(truth(each.get("GGML_CUDA", False)) for each in calls)

    def instructions(self, recipe: Recipe, platforms: Platforms) -> list[str]:
        calls = map(merged, self.layers(recipe, platforms))
        found = [name for each in calls for name in instructions(each, platforms.target)]
        return list(dict.fromkeys(found))

    def check(self, recipe: Recipe) -> Iterator[Finding]:
        yield from super().check(recipe)
        for index, call in enumerate(recipe.cmake):
            for key, message in self._of_call(call):
                yield ("cmake", index, *key), message
        needed = {
            name: (value, why) for why, of in self.relied.items() for name, value in of.items()
        }
        for path, name, value in given(recipe):
            if name in needed and not same(value, needed[name][0]):
                wanted = definition_value(needed[name][0])
                yield path, f"{name} must be {wanted}: {needed[name][1]}"
        yield from contradictions(recipe)

    def _of_call(self, call: Cmake) -> Iterator[Finding]:
        """The findings of one call, with keys below its own."""
        if call.place is not None and not self.takes("layout"):
            yield ("place",), f"the family {self.name} chooses its own directories"
        if wrong := self._misinstalled(call):
            yield ("install",) if "install" in call.model_fields_set else (), wrong
        for name in call.define:
            if name in self.fixed:
                message = "is set by the family for every tree: use override, with a reason"
                yield ("define", name), message
        for place, each in enumerate(call.override):
            if each.name not in self.fixed:
                message = "the family does not set it for every tree: use define"
                yield ("override", place, "name"), message
            elif same(each.value, self.fixed[each.name]):
                yield ("override", place, "value"), "the family sets this value"

    def _misinstalled(self, call: Cmake) -> str:
        """What is wrong with the way in which a call is installed; empty: nothing."""
        if "install" in call.model_fields_set and call.install not in self.installs:
            return f'the family {self.name} does not take install = "{call.install}": leave it out'
        if not self.installs or (call.install == "targets") == bool(call.targets):
            return ""
        if not call.targets:
            return "name the targets to install"
        how = 'leave targets out, or set install = "targets"'
        return f"the project's install rules want everything that it builds by default: {how}"


class CmakeTree(CmakeFamily):
    """Each call of cmake is installed by the tree's own rules, or its targets are."""

    name = "cmake"
    summary = "a tree with one or more CMakeLists.txt, by its install rules or by targets"
    template = "cmake.Dockerfile.j2"
    scripts = ("jobs", "reproducible", "used")
    required_tables = {"cmake": "a [[cmake]] table"}
    requires_entrypoint = True
    installs = ("rules", "targets")

    def scripts_of(self, recipe: Recipe, platforms: Platforms) -> tuple[str, ...]:
        collects = any(call.install == "targets" for call in recipe.cmake)
        return (*self.scripts, *(["collect.py"] if collects else []))


class Artifact(CmakeFamily):
    """One call of cmake, whose files are alone in an image from scratch.

    The image runs nothing: ``docker cp`` from a container that was only created, ``COPY --from`` or
    ``builder build --output`` gets the files.
    """

    name = "artifact"
    summary = "files that cmake makes, alone in an image from scratch"
    template = "artifact.Dockerfile.j2"
    scripts = ("jobs", "reproducible", "used")
    requires_stages = ("devel",)
    required_tables = {"artifact": "an [artifact] table: files"}
    tables = ("cmake",)
    runs = False

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
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
        return with_image(recipe, user="root")

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        # Such trees link with -lcuda.
        directories = f"-L{TOOLKIT_LIBRARIES} -L{DRIVER_STUB}"
        return dict.fromkeys(LINKER_FLAGS, f"{directories} {rpath_link(recipe)}")

    def install(
        self, recipe: Recipe, platforms: Platforms, number: int, call: Cmake
    ) -> list[Command]:
        artifact = required(recipe.artifact, recipe)
        command = ["install", "-D", "-m", "0755"]
        if artifact.loads:
            command += ["--strip", f"--strip-program={platforms.triplet}-strip"]
        named = zip(artifact.files, artifact.names, strict=True)
        return [[*command, f"/build/{number}/{path}", f"/layer/{name}"] for path, name in named]
