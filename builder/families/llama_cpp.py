"""Family ``llama-cpp``: llama.cpp and its forks.

Facts of the trees' own CMake files (``CMakeLists.txt``, ``ggml/CMakeLists.txt``,
``ggml/src/ggml-cuda/CMakeLists.txt``, ``tools/ui/CMakeLists.txt``): everything lands in ``bin/``
of the build directory, 120 becomes 120a, a build number and commit that are passed go before git.
A name that a tree does not know is ignored by cmake, so the old and new ones stand side by side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from builder.families.compiling import (
    Layer,
    common_layers,
    invocations,
    no_packages,
    no_scope,
    unused,
)
from builder.platforms import GNU_TRIPLETS, Platforms
from builder.recipes.schema import (
    Cmake,
    GitSource,
    Image,
    LibraryProbe,
    Probe,
    Recipe,
    RunProbe,
    Serve,
)

packages = no_packages
TEMPLATE = "llama-cpp.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ("jobs", "collect.py")
STANDS_ON: tuple[str, ...] = ("devel", "runtime")
NO_VMM: str | None = "GGML_CUDA_NO_VMM"
INHERITS = False
scope = no_scope
BIN = "/opt/engine/bin"
SERVER = "llama-server"
COMMIT_DIGITS = 9
PORT = 8080

SERVE = Serve(
    api_flavor="llama-server",
    arguments=["--model", "{model}", "--ctx-size", "{context}"],
    gpu=["--n-gpu-layers", "99"],
    verbose=["--verbosity", "4"],  # newer trees tell nothing of layers by default
    draft=["--model-draft", "{draft}"],
)

ALWAYS: Mapping[str, str | int | bool] = {
    "GGML_CUDA": True,
    "GGML_NATIVE": False,  # else the CPU part is compiled for the machine that builds
    "GGML_CUDA_NCCL": False,  # else libnccl.so.2 is needed where a toolkit holds it
    "GGML_CCACHE": False,  # the compiler launchers are ours
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
    # Programs and libraries stand in one directory: what is moved whole finds itself.
    "CMAKE_BUILD_WITH_INSTALL_RPATH": True,
    "CMAKE_INSTALL_RPATH": "$ORIGIN",
}
"""What holds for every tree; a recipe that says otherwise is refused."""


def check(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """A ``[llama]`` table, named targets with the server among them, and none of our flags."""
    if recipe.llama is None:
        yield ("family",), "the family llama-cpp needs a [llama] table: build_number"
    elif recipe.llama.build_commit is None and not isinstance(recipe.source, GitSource):
        yield ("llama",), "build_commit is needed where the source is no git repository"
    yield from unused(recipe, "llama-cpp", "cmake", "llama")
    if not any(SERVER in part.targets for part in recipe.cmake):
        yield (
            ("family",),
            f"{SERVER} is what the smoke test starts: name it in the targets of a [[cmake]]",
        )
    for index, part in enumerate(recipe.cmake):
        for path, message in _check_part(part):
            yield ("cmake", index, *path), message


def _check_part(part: Cmake) -> Iterator[tuple[tuple[str, ...], str]]:
    if not part.targets:
        yield (), "name the targets: some trees build by default what fetches files"
    for name in part.define:
        if name in ALWAYS or name in OF_THE_RECIPE:
            reason = OF_THE_RECIPE.get(name, "it holds for every tree")
            yield ("define", name), f"is the family's: {reason}"
    if part.define.get("GGML_CPU_ALL_VARIANTS") and not part.define.get("GGML_BACKEND_DL"):
        yield ("define", "GGML_CPU_ALL_VARIANTS"), "needs GGML_BACKEND_DL = true"


OF_THE_RECIPE = {
    "GGML_CUDA_NO_VMM": "say vmm in [cuda]",
    "CMAKE_CUDA_ARCHITECTURES": "say arch in [cuda]",
    "LLAMA_BUILD_NUMBER": "say build_number in [llama]",
    "LLAMA_BUILD_COMMIT": "say build_commit in [llama], or nothing",
    "LLAMA_BUILD_UI": "say ui in [llama]",
    "LLAMA_BUILD_WEBUI": "say ui in [llama]",
}


def commit_of(recipe: Recipe) -> str:
    """The commit as ``--version`` prints it."""
    assert recipe.llama is not None
    if recipe.llama.build_commit is not None:
        return recipe.llama.build_commit
    assert isinstance(recipe.source, GitSource)
    return recipe.source.commit[:COMMIT_DIGITS]


def complete(recipe: Recipe) -> Recipe:
    """The server as the entrypoint, its port and health page, and the probes of every tree."""
    assert recipe.llama is not None
    image = recipe.image
    known = {
        "entrypoint": image.entrypoint or [f"{BIN}/{SERVER}"],
        "port": image.port or PORT,
        "health": image.health or "health",
        "env": {
            "LLAMA_ARG_HOST": "0.0.0.0",  # noqa: S104  (of the container)
            "LLAMA_ARG_PORT": str(image.port or PORT),
            **image.env,
        },
    }
    complete_image = Image.model_validate(image.model_dump() | known)
    return recipe.model_copy(
        update={
            "image": complete_image,
            "probe": [*_probes(recipe), *recipe.probe],
            "serve": recipe.serve or SERVE,
        }
    )


def _probes(recipe: Recipe) -> list[Probe]:
    assert recipe.llama is not None
    number, commit = recipe.llama.build_number, re.escape(commit_of(recipe))
    # Later trees say "version: 0.5.0 (build 9329, commit 547676e80)".
    version = rf"version: (?:\S+ \(build {number}, commit |{number} \(){commit}\)"
    return [
        RunProbe(run=[SERVER, "--version"], matches=[version]),
        LibraryProbe(
            library="libggml-cuda.so",
            architectures=[f"sm_{arch}" for arch in _rewritten(recipe.cuda.arch)],
            needs=["libcuda.so.1"] if recipe.cuda.vmm else [],
            needs_not=["libnccl.so.2"] + ([] if recipe.cuda.vmm else ["libcuda.so.1"]),
        ),
    ]


def _rewritten(architectures: Sequence[str]) -> list[str]:
    """The machine code that comes of it: ggml's cmake makes 120a of 120 (FP4 needs it)."""
    names = [arch.removesuffix("-real") for arch in architectures if not arch.endswith("-virtual")]
    return [f"{name}a" if name in {"120", "121"} else name for name in names]


def definitions(recipe: Recipe, platforms: Platforms) -> Sequence[Sequence[Layer]]:
    """What every CUDA engine needs, what every llama.cpp tree needs, then the recipe's own."""
    assert recipe.llama is not None
    ours: dict[str, str | int | bool] = {
        **ALWAYS,
        "GGML_CUDA_NO_VMM": not recipe.cuda.vmm,
        "LLAMA_BUILD_NUMBER": recipe.llama.build_number,
        "LLAMA_BUILD_COMMIT": commit_of(recipe),
        "LLAMA_BUILD_UI": recipe.llama.ui,
        "LLAMA_BUILD_WEBUI": recipe.llama.ui,
    }
    common = [*common_layers(recipe, platforms), Layer("family llama-cpp", ours)]
    return [[*common, Layer("recipe", part.define)] for part in recipe.cmake]


def variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
    """The arguments of each cmake invocation, and how its programs are collected."""
    command = ["python3", "/inside/collect.py", "--strip"]
    command.append(f"{GNU_TRIPLETS[platforms.target]}-strip")

    def collect(number: int, part: Cmake) -> list[str]:
        return [*command, f"/build/{number}/bin", BIN, *part.targets]

    return {"invocations": invocations(recipe, definitions(recipe, platforms), collect)}
