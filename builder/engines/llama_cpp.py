"""Family ``llama-cpp``: llama.cpp and its forks.

Facts of the trees' own CMake files (``CMakeLists.txt``, ``ggml/CMakeLists.txt``,
``ggml/src/ggml-cuda/CMakeLists.txt``, ``tools/ui/CMakeLists.txt``): everything is built in ``bin/``
of the build directory, 120 becomes 120a, and a given build number and commit win over git's.
cmake ignores names that a tree does not use, so old and new names are set side by side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from builder.core.platforms import Platforms
from builder.core.versions import RELEASE
from builder.engines.cmake_calls import Command, Definitions, truth
from builder.engines.family import EngineFamily, Finding, required, with_image
from builder.engines.layout import LAYOUT
from builder.engines.llama_cpp_tree import PAGES, draft
from builder.engines.tree import Draft, ReadableTree
from builder.recipes.probes import LibraryProbe, Probe, RunProbe, Serve
from builder.recipes.schema import Cmake, Cuda, Recipe
from builder.recipes.sources import GitSource

if TYPE_CHECKING:
    from builder.recipes.edit import Recount

NO_VMM = "GGML_CUDA_NO_VMM"
SERVER = "llama-server"
COMMIT_DIGITS = 9
PORT = 8080

SERVE = Serve(
    api_flavor="llama-server",
    arguments=["--model", "{model}", "--ctx-size", "{context}"],
    gpu=["--n-gpu-layers", "99"],
    verbose=["--verbosity", "4"],  # newer trees do not print the layers by default
    draft=["--model-draft", "{draft}"],
)

ALWAYS: Definitions = {
    "GGML_CUDA": True,
    "GGML_NATIVE": False,  # else the CPU code is compiled for the build machine
    # Else it links libnccl.so.2 if the toolkit has it; NCCL 2.25.1 writes out of bounds, which
    # 2.27.5 does not (ggml-org/llama.cpp#24489).
    "GGML_CUDA_NCCL": False,
    "GGML_CCACHE": False,  # we set the compiler launchers ourselves
    "BUILD_SHARED_LIBS": True,
    "LLAMA_BUILD_TESTS": False,  # they fetch vocabularies
    "LLAMA_BUILD_EXAMPLES": False,
    "LLAMA_BUILD_TOOLS": True,
    "LLAMA_BUILD_SERVER": True,
    "LLAMA_BUILD_APP": False,
    "LLAMA_OPENSSL": True,
    "LLAMA_CURL": False,
    "LLAMA_USE_PREBUILT_UI": False,  # it is downloaded
    "LLAMA_USE_PREBUILT_WEBUI": False,
    "LLAMA_LLGUIDANCE": False,  # it and the following are fetched by cmake
    "LLAMA_BUILD_BORINGSSL": False,
    "LLAMA_BUILD_LIBRESSL": False,
    "GGML_CPU_KLEIDIAI": False,
    "GGML_CUDA_CUB_3DOT2": False,
    # Programs and libraries are in one directory, which may then be moved.
    "CMAKE_BUILD_WITH_INSTALL_RPATH": True,
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
}
"""Definitions of every tree."""

FOR_ANY_CPU: Mapping[str, Definitions] = {
    "else its CPU code is for the machine that builds": {
        "GGML_NATIVE": False,
        "LLAMA_NATIVE": False,
    },
}
COMPILED: Mapping[str, Definitions] = {
    **FOR_ANY_CPU,
    "the engine computes on the GPU, and the checks read its CUDA code": {"GGML_CUDA": True},
    "programs find their libraries beside them, also where they were moved": {
        "CMAKE_BUILD_WITH_INSTALL_RPATH": True,
        "CMAKE_INSTALL_RPATH": "$ORIGIN",
        "CMAKE_SKIP_RPATH": False,
        "CMAKE_SKIP_INSTALL_RPATH": False,
        "CMAKE_SKIP_BUILD_RPATH": False,
    },
    "only then is the CPU code optimized for every tree": {"CMAKE_BUILD_TYPE": "Release"},
}
"""Definitions that hold wherever ggml is compiled, by the reason; older trees have old names, such
as LLAMA_NATIVE and GGML_NCCL."""
RELIED: Mapping[str, Definitions] = {
    **COMPILED,
    "the family's probe reads libggml-cuda.so, which is a library of its own": {
        "BUILD_SHARED_LIBS": True,
        "GGML_STATIC": False,
        "LLAMA_STATIC": False,
        "LLAMA_USE_SYSTEM_GGML": False,
    },
    "the family's probe says that libggml-cuda.so does not need libnccl.so.2": {
        "GGML_CUDA_NCCL": False,
        "GGML_NCCL": False,
    },
    "the image starts llama-server": {
        "LLAMA_BUILD_COMMON": True,
        "LLAMA_BUILD_TOOLS": True,
        "LLAMA_BUILD_SERVER": True,
    },
}

CPU_OF_AMD64 = ("GGML_SSE42", "GGML_AVX", "GGML_AVX2", "GGML_BMI2", "GGML_FMA", "GGML_F16C")
CPU_OF_ARM64 = "armv8.2-a+dotprod+fp16+i8mm"
"""The cores of a GB10, Cortex-X925 and Cortex-A725, implement Armv9.2-A, which has all of these."""


def cpu_definitions(platforms: Platforms) -> Definitions:
    """The instructions of the CPU code.

    On amd64, ggml's defaults without GGML_NATIVE.  ggml takes none of them when it is
    cross-compiled, and none where SOURCE_DATE_EPOCH is set (``ggml/CMakeLists.txt``:
    GGML_NATIVE_DEFAULT, INS_ENB): the CPU would compute with SSE2.  On arm64 it takes
    armv8-a, which lacks int8 dot products, unless GGML_CPU_ARM_ARCH is set.
    """
    if platforms.target == "amd64":
        return dict.fromkeys(CPU_OF_AMD64, True)
    return {"GGML_CPU_ARM_ARCH": CPU_OF_ARM64}


FROM_RECIPE = {
    NO_VMM: "is set by the family: use vmm in [cuda]",
    "LLAMA_BUILD_NUMBER": "is set by the family: use build_number in [llama]",
    "LLAMA_BUILD_COMMIT": "is set by the family: use build_commit in [llama]",
    "LLAMA_BUILD_UI": "is set by the family: use ui in [llama]",
    "LLAMA_BUILD_WEBUI": "is set by the family: use ui in [llama]",
}
"""Definitions that follow from other keys of the recipe."""


class Ggml(EngineFamily):
    """A tree that compiles ggml for CUDA, whose programs find its libraries beside them."""

    scripts = ("jobs", "collect.py", "reproducible", "used")
    no_vmm = NO_VMM
    fixed = ALWAYS

    def machine_code(self, recipe: Recipe) -> list[str]:
        """The code of ggml's library."""
        return machine_code(recipe)


class LlamaCpp(Ggml):
    """One or more calls of cmake, whose programs and libraries share one directory."""

    name = "llama-cpp"
    summary = "llama.cpp and its forks"
    template = "llama-cpp.Dockerfile.j2"
    required_tables = {"llama": "a [llama] table: build_number"}
    tables = ("cmake",)
    reads_trees = True
    relied = RELIED
    between_cards = {
        # b10018: docs/multi-gpu.md, "With NCCL"; ggml-cuda.cu, ggml_backend_cuda_comm_init_nccl
        ("--split-mode", "LLAMA_ARG_SPLIT_MODE", "tensor"): (
            "the image has no NCCL (GGML_CUDA_NCCL is OFF): llama.cpp adds up the cards' results "
            "in a way that its documentation calls suboptimal"
        )
    }

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        """The calls build the server, download nothing, and define nothing of other keys."""
        llama = recipe.llama
        if llama and llama.build_commit is None and not isinstance(recipe.source, GitSource):
            yield ("llama",), "build_commit is required where the source is not a git repository"
        if not any(SERVER in call.targets for call in recipe.cmake):
            message = f"{SERVER} must be in the targets of a [[cmake]]: the smoke test starts it"
            yield ("family",), message
        for index, call in enumerate(recipe.cmake):
            at = ("cmake", index)
            if not call.targets:
                yield at, "name the targets: the default build of some trees downloads"
            for name in call.define:
                if name in FROM_RECIPE:
                    yield (*at, "define", name), FROM_RECIPE[name]
            on = {name for name, value in call.define.items() if truth(value)}
            if "GGML_CPU_ALL_VARIANTS" in on and "GGML_BACKEND_DL" not in on:
                message = "needs GGML_BACKEND_DL = true"
                yield (*at, "define", "GGML_CPU_ALL_VARIANTS"), message

    def complete(self, recipe: Recipe) -> Recipe:
        """The server as entrypoint, its port and health page, and probes for every tree."""
        image = recipe.image
        port = image.port or PORT
        completed = with_image(
            recipe,
            entrypoint=image.entrypoint or [f"{LAYOUT.programs}/{SERVER}"],
            port=port,
            health=image.health or "health",
            env={
                "LLAMA_ARG_HOST": "0.0.0.0",  # noqa: S104  (inside the container)
                "LLAMA_ARG_PORT": str(port),
                **image.env,
            },
        )
        update = {"probe": [*_probes(recipe), *recipe.probe], "serve": recipe.serve or SERVE}
        return completed.model_copy(update=update)

    def draft(self, tree: ReadableTree, cuda: Cuda) -> Draft | None:
        """The recipe of a tree of llama.cpp or of a fork."""
        return draft(tree, cuda)

    def absent(self, recipe: Recipe, paths: Collection[str]) -> Iterator[Finding]:
        """The web page, where the recipe embeds it."""
        if required(recipe.llama, recipe).ui and not any(page in paths for page in PAGES):
            yield ("llama", "ui"), f"the source has no built web page (none of {', '.join(PAGES)})"

    def recounted(self, recipe: Recipe, count: Callable[[], int]) -> Recount:
        """The build number; upstream names a release by it: "b9261"."""
        from builder.recipes.edit import Recount  # slow to import

        number = required(recipe.llama, recipe).build_number
        return Recount(("llama", "build_number"), number, count())

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        """The definitions of every tree, and those that follow from other keys."""
        llama = required(recipe.llama, recipe)
        return {
            **ALWAYS,
            # Else --version says "0.5.0-dev": llama.cpp's docs/release.md, "Building a release".
            **({"LLAMA_BUILD_IS_DEV": False} if _is_release(recipe) else {}),
            **cpu_definitions(platforms),
            NO_VMM: not recipe.cuda.vmm,
            "LLAMA_BUILD_NUMBER": llama.build_number,
            "LLAMA_BUILD_COMMIT": _commit(recipe),
            "LLAMA_BUILD_UI": llama.ui,
            "LLAMA_BUILD_WEBUI": llama.ui,
        }

    def install(
        self, recipe: Recipe, platforms: Platforms, number: int, call: Cmake
    ) -> list[Command]:
        """The programs, and the libraries that they need."""
        strip = f"{platforms.triplet}-strip"
        command = ["python3", "/inside/collect.py", "--strip", strip]
        return [[*command, f"/build/{number}/bin", LAYOUT.programs, *call.targets]]


def _commit(recipe: Recipe) -> str:
    """The commit as ``--version`` prints it."""
    chosen = required(recipe.llama, recipe).build_commit
    if chosen is None and isinstance(recipe.source, GitSource):
        return recipe.source.commit[:COMMIT_DIGITS]
    return required(chosen, recipe)


def _probes(recipe: Recipe) -> list[Probe]:
    number = required(recipe.llama, recipe).build_number
    commit = re.escape(_commit(recipe))
    # Later trees print "version: 0.5.0 (build 9329, commit 547676e80)".
    name = r"(?!\S*-dev)\S+" if _is_release(recipe) else r"\S+"
    version = rf"version: (?:{name} \(build {number}, commit |{number} \(){commit}\)"
    overridden = {each.name for call in recipe.cmake for each in call.override if truth(each.value)}
    return [
        RunProbe(run=[SERVER, "--version"], matches=[version]),
        LibraryProbe(
            library="libggml-cuda.so",
            # Trees with the server in examples/ may be older than ggml's libraries of their own.
            alternatives=["libggml.so"] if "LLAMA_BUILD_EXAMPLES" in overridden else [],
            architectures=machine_code(recipe),
            needs=["libcuda.so.1"] if recipe.cuda.vmm else [],
            needs_not=["libnccl.so.2"] + ([] if recipe.cuda.vmm else ["libcuda.so.1"]),
        ),
    ]


def machine_code(recipe: Recipe) -> list[str]:
    """The machine code of ggml's library: its cmake turns 120 into 120a, for FP4."""
    architectures = recipe.cuda.arch
    names = [arch.removesuffix("-real") for arch in architectures if not arch.endswith("-virtual")]
    return [f"sm_{name}a" if name in {"120", "121"} else f"sm_{name}" for name in names]


def _is_release(recipe: Recipe) -> bool:
    """Whether the recipe is of a release, by its version or the tag of its source."""
    ref = recipe.source.ref if isinstance(recipe.source, GitSource) else None
    return any(RELEASE.fullmatch(name) for name in (recipe.version, ref or ""))
