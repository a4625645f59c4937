"""Base family ``cuda-wheels``: a CUDA toolkit and its runtime from NVIDIA's PyPI wheels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.core.errors import RecipeError
from builder.core.platforms import GNU_TRIPLETS, Architecture, Platforms, of_target
from builder.engines.debian import StagePackages, compiling, running
from builder.engines.family import BaseFamily, Finding, Packages
from builder.engines.layout import LAYOUT
from builder.recipes.base import CUDA_RUNTIME, BaseRecipe
from builder.recipes.lockfile import PinnedFile

# char is signed in the x86-64 psABI and unsigned in Arm's AAPCS64.  Device code follows the machine
# that nvcc runs on, whatever its host compiler compiles for, and nothing warns.
# The cudafe++ of arm64 lacks __builtin_nansq, which numeric_limits<__float128> of GCC's <limits>
# calls: the specialization goes.
NVCC_FLAGS: Mapping[Architecture, str] = {
    "amd64": "-Xcudafe --signed_chars -U__SIZEOF_FLOAT128__",
    "arm64": "-Xcudafe --unsigned_chars",
}


class CudaWheels(BaseFamily):
    """The stage ``devel`` compiles; the engines' images stand on ``runtime``."""

    name = "cuda-wheels"
    summary = "a CUDA toolkit and its runtime from NVIDIA's PyPI wheels"
    template = "cuda-wheels.Dockerfile.j2"
    scripts = ("assemble_cuda.py", "jobs", "reproducible")
    cross_scripts = ("cross.cmake",)
    requires_stages = ("root",)
    stages = {"devel": "zstd", "system": "gzip", "runtime": "gzip"}
    requires_base = "its Debian root"
    required_tables = {"wheel": "[[wheel]] tables"}

    def rules(self, recipe: BaseRecipe) -> Iterator[Finding]:
        """The runtime has libraries, and the wheels are there for the images' platform."""
        if not recipe.runtime.libraries:
            yield ("runtime",), "the runtime has no CUDA library: name some in libraries"
        if recipe.wheel and recipe.cuda is None:
            message = f"the family cuda-wheels needs the wheel {CUDA_RUNTIME} for CUDA's version"
            yield ("family",), message
        for index, wheel in enumerate(recipe.wheel):
            if "amd64" not in wheel.sha256:
                yield ("wheel", index, "sha256"), f"{wheel.name} lacks amd64, the images' platform"

    def packages(self, recipe: BaseRecipe, folder: Path, platforms: Platforms) -> Packages:
        """The toolchain for the build platform, and the libraries for the target.

        Raises ``RecipeError`` where a wheel is not pinned for the platform that needs it.
        """

        def pinned(architecture: Architecture, *kinds: bool) -> tuple[PinnedFile, ...]:
            wheels = [wheel for wheel in recipe.wheel if wheel.library in kinds]
            missing = [wheel.name for wheel in wheels if architecture not in wheel.sha256]
            if missing:
                raise RecipeError(
                    f"{recipe.name} has no wheel for {architecture}: {', '.join(missing)}",
                    hint=f"add sha256.{architecture} to their [[wheel]] tables",
                )
            return tuple(
                PinnedFile(wheel.name, wheel.version, wheel.sha256[architecture])
                for wheel in wheels
            )

        if not platforms.cross:
            return {"wheels": pinned(platforms.target, False, True)}
        return {
            "wheels": pinned(platforms.build, False),
            "target-wheels": pinned(platforms.target, True),
        }

    def debian(self, recipe: BaseRecipe, platforms: Platforms) -> list[StagePackages]:
        """The compilers on the build platform, with a cross compiler where that is another."""
        devel = of_target(recipe.devel.packages, platforms.target)
        devel += recipe.devel.crossing(platforms)
        return [
            compiling("devel", "root", devel, platforms),
            running("runtime", "root", recipe.runtime.packages, platforms),
        ]

    def variables(self, recipe: BaseRecipe, platforms: Platforms) -> Mapping[str, Any]:
        """The command that assembles the toolkit, and the flags of nvcc."""
        contexts = ["wheels", *(["target-wheels"] if platforms.cross else [])]
        assemble = ["python3", "/inside/assemble_cuda.py", "--root", LAYOUT.cuda]
        assemble += ["--compiler", f"{GNU_TRIPLETS[platforms.build]}-gcc"]
        assemble += ["--stub-compiler", f"{platforms.triplet}-gcc"]
        assemble += ["--staging", "/libraries"]
        for context in contexts:
            assemble += ["--wheels", f"/{context}"]
        for library in recipe.runtime.libraries:
            assemble += ["--runtime", library]
        return {
            "foreign": platforms.target if platforms.cross else None,
            "nvcc_flags": NVCC_FLAGS[platforms.target],
            "contexts": contexts,
            "assemble": assemble,
            "cuda": recipe.cuda,
        }
