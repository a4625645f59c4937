"""The families: how each kind of engine, and each kind of base, is made.

A family is a subclass of ``EngineFamily`` or ``BaseFamily``, listed below, and a Dockerfile
template.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.core.errors import RecipeError
from builder.core.platforms import GNU_TRIPLETS, Architecture, Platforms, of_target
from builder.engines.cmake import Artifact, CmakeTree
from builder.engines.family import (
    BaseFamily,
    EngineFamily,
    Finding,
    Packages,
    StagePackages,
    compiling,
    native_lock,
    required,
    running,
)
from builder.engines.layout import LAYOUT
from builder.engines.llama_cpp import Ggml, GgmlPython, LlamaCpp, PythonSdist
from builder.engines.overlay import Lmdeploy, Sglang, TabbyApi, Vllm
from builder.recipes import catalog
from builder.recipes.catalog import Catalog, CatalogFile
from builder.recipes.locks import PinnedFile
from builder.recipes.probes import Serve
from builder.recipes.schema import CUDA_RUNTIME, BaseRecipe, Recipe, Stage

__all__ = ["BASES", "ENGINES", "BaseFamily", "EngineFamily"]


class DebianRoot(BaseFamily):
    """Its only stage is the root of all others."""

    name = "debian-root"
    summary = "a minimal Debian system, from a registry or made by mmdebstrap"
    template = "debian-root.Dockerfile.j2"
    scripts = ("reproducible",)
    stages = {"root": "gzip"}
    required_tables = {"root": "a [root] table"}

    def rules(self, recipe: BaseRecipe) -> Iterator[Finding]:
        if recipe.root is not None and (recipe.root.as_of is None) == (recipe.debian is None):
            message = "a root has the date of its packages: as_of in [root], or lock in [debian]"
            yield ("root",), message

    def debian(self, recipe: BaseRecipe, platforms: Platforms) -> list[StagePackages]:
        """A root for each of both platforms; with a cross compiler, one for the build platform."""
        root = required(recipe.root, recipe)
        cross = root.crossing(platforms)
        if cross:
            return [compiling("root", "", [*root.packages, *cross], platforms)]
        return [StagePackages("root", "", each, tuple(root.packages)) for each in platforms.both]


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
    requires_stages = ("root",)
    stages = {"devel": "zstd", "system": "gzip", "runtime": "gzip"}
    requires_base = "its Debian root"
    required_tables = {"wheel": "[[wheel]] tables"}

    def scripts_of(self, recipe: BaseRecipe, platforms: Platforms) -> tuple[str, ...]:
        return (*self.scripts, *(["cross.cmake"] if platforms.cross else []))

    def rules(self, recipe: BaseRecipe) -> Iterator[Finding]:
        if not recipe.runtime.libraries:
            yield ("runtime",), "the runtime has no CUDA library: name some in libraries"
        if recipe.wheel and recipe.cuda is None:
            message = f"the family cuda-wheels needs the wheel {CUDA_RUNTIME} for CUDA's version"
            yield ("family",), message
        for index, wheel in enumerate(recipe.wheel):
            if "amd64" not in wheel.sha256:
                yield ("wheel", index, "sha256"), f"{wheel.name} lacks amd64, the images' platform"

    def packages(self, recipe: BaseRecipe, folder: Path, platforms: Platforms) -> Packages:
        """The toolchain for the build platform, and the libraries for the target."""

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


class PythonWheels(BaseFamily):
    """The environment stands on a CUDA runtime."""

    name = "python-wheels"
    summary = "Python packages from locked wheels, in a virtual environment"
    template = "python-wheels.Dockerfile.j2"
    scripts = ("diet.py", "reproducible")
    requires_stages = ("devel", "system")
    stages = {"runtime": "gzip"}
    requires_base = "a CUDA runtime"
    required_tables = {"python": "a [python] table: lock, requirements"}

    def rules(self, recipe: BaseRecipe) -> Iterator[Finding]:
        python = recipe.python
        if python and python.dead and not python.capabilities:
            yield ("python", "dead"), "needs capabilities: the cards that the image is for"
        if python and python.nvcc and not any("nvcc" in each for each in python.requirements):
            yield ("python", "nvcc"), 'needs the requirement "cuda-toolkit[nvcc]"'

    def packages(self, recipe: BaseRecipe, folder: Path, platforms: Platforms) -> Packages:
        return {"wheels": native_lock(recipe, folder, platforms).runtime}

    def debian(self, recipe: BaseRecipe, platforms: Platforms) -> list[StagePackages]:
        return [running("runtime", "runtime", recipe.runtime.packages, platforms)]


class Published(BaseFamily):
    """The image is used as it is."""

    name = "published"
    summary = "an image that another project publishes, by digest"
    template = "published.Dockerfile.j2"
    stages = {"runtime": "gzip"}
    required_tables = {"published": "a [published] table: image"}

    def rules(self, recipe: BaseRecipe) -> Iterator[Finding]:
        if recipe.devel != Stage() or recipe.runtime != Stage():
            yield ("family",), "a published image is used unchanged: remove [devel] and [runtime]"


ENGINES: dict[str, EngineFamily] = {
    family.name: family
    for family in (
        Artifact(),
        CmakeTree(),
        LlamaCpp(),
        Ggml(),
        GgmlPython(),
        PythonSdist(),
        TabbyApi(),
        Vllm(),
        Lmdeploy(),
        Sglang(),
    )
}
BASES: dict[str, BaseFamily] = {
    family.name: family for family in (CudaWheels(), DebianRoot(), Published(), PythonWheels())
}


def bases_of(catalog: Catalog, recipe: Recipe | BaseRecipe) -> list[str]:
    """The bases below a recipe or a base, and the bases in which its entrypoint is compiled."""
    tools = None if isinstance(recipe, BaseRecipe) else ENGINES[recipe.family].tools
    return list(dict.fromkeys([*catalog.chain(recipe.base), *catalog.chain(tools)]))


def complete(recipe: Recipe) -> Recipe:
    """A recipe with the defaults of its family."""
    return ENGINES[recipe.family].complete(recipe)


def serve_of(recipe: Recipe) -> Serve | None:
    """How the server of a recipe is started, also where the smoke test does not; None: unknown."""
    return complete(recipe).serve or ENGINES[recipe.family].serve


def load_catalog(
    root: Path, new: CatalogFile | None = None, only: Collection[str] | None = None
) -> Catalog:
    """The recipes and bases of the farm at ``root``, checked by their families.

    ``new`` is a recipe that has not been written; ``only`` are the recipes and engines to read.

    Raises ``RecipeError`` if it holds no recipes.
    """
    engines = {name: family.check for name, family in ENGINES.items()}
    bases = {name: family.check for name, family in BASES.items()}
    return catalog.load(root, engines, bases, new, only)
