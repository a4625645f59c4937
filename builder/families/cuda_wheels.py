"""Base family ``cuda-wheels``: a CUDA toolkit and its runtime out of NVIDIA's PyPI wheels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.families.standing import foreign
from builder.platforms import GNU_TRIPLETS, Platforms
from builder.recipes.lockfile import PinnedFile
from builder.recipes.schema import BaseRecipe, Wheel

TEMPLATE = "cuda-wheels.Dockerfile.j2"
SCRIPTS: tuple[str, ...] = ("assemble_cuda.py", "healthcheck", "jobs")
RUNTIME = "nvidia-cuda-runtime"
STANDS_ON: tuple[str, ...] = ("root",)
STAGES: Mapping[str, str] = {"devel": "zstd", "runtime": "gzip"}


def check(recipe: BaseRecipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Wheels, a base to stand on, and the libraries that the runtime ships."""
    if recipe.base is None:
        yield ("family",), "the family cuda-wheels needs a base: its Debian root"
    if not recipe.wheel:
        yield ("family",), "the family cuda-wheels needs [[wheel]] tables"
    if not recipe.runtime.libraries:
        yield ("runtime",), "the runtime ships no library: name some in libraries"
    if recipe.wheel and not _runtimes(recipe):
        yield ("family",), f"the family cuda-wheels needs the wheel {RUNTIME}: it has the version"
    yield from foreign(recipe, "cuda-wheels", "wheel")
    for index, wheel in enumerate(recipe.wheel):
        if "amd64" not in wheel.sha256:
            yield ("wheel", index, "sha256"), f"{wheel.name} lacks amd64, the images' platform"


def packages(
    recipe: BaseRecipe,
    folder: Path,  # noqa: ARG001
    platforms: Platforms,
) -> Mapping[str, tuple[PinnedFile, ...]]:
    """The toolchain's wheels of the build platform, and the libraries' of the target."""
    toolchain = tuple(
        PinnedFile(wheel.name, wheel.version, wheel.sha256[platforms.build])
        for wheel in recipe.wheel
        if platforms.build in wheel.sha256
    )
    libraries = tuple(
        PinnedFile(wheel.name, wheel.version, wheel.sha256[platforms.target])
        for wheel in recipe.wheel
        if wheel.library
    )
    return {"wheels": toolchain} | ({"target-wheels": libraries} if platforms.cross else {})


def variables(recipe: BaseRecipe, platforms: Platforms) -> Mapping[str, Any]:
    """The packages of the devel stage, and how the toolkit is put together."""
    contexts = ["wheels", *(["target-wheels"] if platforms.cross else [])]
    assemble = ["python3", "/inside/assemble_cuda.py", "--root", "/usr/local/cuda"]
    assemble += ["--stub-compiler", f"{GNU_TRIPLETS[platforms.target]}-gcc"]
    assemble += ["--staging", "/staging"]
    for context in contexts:
        assemble += ["--wheels", f"/{context}"]
    for library in recipe.runtime.libraries:
        assemble += ["--runtime", library]
    cross = recipe.devel.cross if platforms.cross else []
    return {
        "devel_packages": [*recipe.devel.packages, *cross],
        "foreign": platforms.target if platforms.cross else None,
        "contexts": contexts,
        "assemble": assemble,
        "cuda": cuda_version(recipe),
    }


def cuda_version(recipe: BaseRecipe) -> str:
    """``13.0``: of the runtime library."""
    version = _runtimes(recipe)[0].version
    return ".".join(version.split(".")[:2])


def _runtimes(recipe: BaseRecipe) -> list[Wheel]:
    """The wheel of the runtime library: until CUDA 12 its name ended in ``-cu12``."""
    return [wheel for wheel in recipe.wheel if wheel.name in {RUNTIME, f"{RUNTIME}-cu12"}]
