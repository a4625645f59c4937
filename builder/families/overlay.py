"""Overlays: a base that has an engine's Python package installed, and patched files of it.

A family of overlays is an entry of ``FAMILIES``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from builder.families import lmdeploy_log, sglang_log, vllm_log
from builder.families.family import EngineFamily, Finding, FolderServer, on_a_card, with_image
from builder.families.layout import LAYOUT
from builder.families.package_paths import PackagePaths
from builder.platforms import Platforms
from builder.recipes.schema import InstalledSource, Overlay, PypiSource, Recipe, Serve


def overlay_family(
    *,
    name: str,
    project: str,
    paths: PackagePaths,
    serve: Serve,
    port: int,
    modules: tuple[str, ...] = (),
    folder: FolderServer | None = None,
    cache: str | None = None,
) -> EngineFamily:
    """A family of overlays over the package of ``paths``, which PyPI has under the same name.

    ``project`` is its name for people; ``port`` is the server's, whose page ``/health`` answers
    when it is ready; ``modules`` and ``folder`` are as for ``EngineFamily``; ``cache`` is the
    directory of compiled code.
    """
    return EngineFamily(
        name=name,
        summary=f"a base that has {project} installed, and patched files of that package",
        template="overlay.Dockerfile.j2",
        scripts=("overlay.py", "start.py", "reproducible"),
        requires_stages=("runtime",),
        tools="debian-trixie-gcc",
        machine_code=lambda _: (),  # the code is the base's
        extends_base=True,
        uses_ccache=False,
        serve=serve,
        folder=folder,
        modules=modules,
        cache=cache,
        tables=("overlay", "start"),
        rules=partial(_rules, name, paths.package),
        complete=partial(_complete, port),
        package_paths=paths,
        variables=partial(_variables, paths.package),
    )


def _overlay_of(recipe: Recipe, package: str) -> Overlay:
    """The package that is patched, and its version."""
    if recipe.overlay is not None:
        return recipe.overlay
    source = recipe.source
    version = source.version if isinstance(source, PypiSource) else "*"
    return Overlay(package=package, version=version)


def _rules(family: str, package: str, recipe: Recipe) -> Iterator[Finding]:
    if recipe.overlay is None and not isinstance(recipe.source, PypiSource):
        yield ("family",), f"the family {family} needs [overlay]: package and version"
    if isinstance(recipe.source, InstalledSource) and recipe.patch:
        yield (
            ("patch",),
            "patches cannot be checked against the base's own package before the build: use a "
            "wheel (pypi) or a commit (git) as source",
        )
    for path, named in _named(recipe):
        if named != package:
            yield path, f"the family {family} patches the package {package}"
    if recipe.debian.build or recipe.debian.runtime:
        yield ("debian",), f"the family {family} installs no Debian packages"
    if recipe.start and recipe.image.entrypoint:
        yield ("image", "entrypoint"), "cannot be set with [[start]]: the base's entrypoint follows"


def _named(recipe: Recipe) -> Iterator[tuple[tuple[str, str], str]]:
    """The keys of a recipe that name the package."""
    if recipe.overlay is not None:
        yield ("overlay", "package"), recipe.overlay.package
    match recipe.source:
        case PypiSource(pypi=name):
            yield ("source", "pypi"), name
        case InstalledSource(installed=name):
            yield ("source", "installed"), name


def _complete(port: int, recipe: Recipe) -> Recipe:
    """The port and the health page; user and entrypoint default to the base's."""
    image = recipe.image
    return with_image(
        recipe,
        port=image.port or port,
        health=image.health or "health",
        entrypoint=["python3", LAYOUT.start] if recipe.start else image.entrypoint,
    )


def _variables(
    package: str,
    recipe: Recipe,
    platforms: Platforms,  # noqa: ARG001
) -> Mapping[str, Any]:
    overlay = _overlay_of(recipe, package)
    command = ["python3", "/run/inside/overlay.py", "/run/overlay"]
    command += ["--package", overlay.package, "--version", overlay.version]
    if not recipe.image.entrypoint:
        command.append("--keep-start")
    if recipe.start:
        steps = [
            {"run": step.run, "says": step.contains, "seconds": step.seconds}
            for step in recipe.start
        ]
        command += ["--start", json.dumps(steps)]
    return {"overlay": command}


VLLM_PATHS = PackagePaths(
    package="vllm",
    compiled=(
        *("csrc/*", "cmake/*", "rust/*", "CMakeLists.txt", "*/CMakeLists.txt", "setup.py"),
        *("*.cu", "*.cuh", "*.c", "*.cc", "*.cpp", "*.h", "*.hpp", "*.pyx", "*.rs", "*Cargo.toml"),
    ),
    needs=("requirements/*", "requirements*.txt", "pyproject.toml"),
    elsewhere=(
        *("tests/*", "docs/*", "examples/*", "benchmarks/*", "tools/*", "docker/*", ".*"),
        *("*.md", "*.rst", "mkdocs.yaml", "mkdocs.yml"),
    ),
)
"""Facts of vLLM's repository: ``csrc/``, ``cmake/`` and everything in CUDA, C++ or Rust is compiled
into shared objects; no wheel has ``tests/``, ``docs/`` and the like."""

LMDEPLOY_PATHS = PackagePaths(
    package="lmdeploy",
    compiled=("src/*", "cmake/*", "3rdparty/*", "CMakeLists.txt", "setup.py", "builder/*"),
    needs=("requirements/*", "requirements*.txt", "pyproject.toml"),
    elsewhere=(
        *("tests/*", "autotest/*", "docs/*", "examples/*", "benchmark/*", "docker/*", "k8s/*"),
        *("resources/*", "scripts/*", "eval/*", ".*", "*.md", "MANIFEST.in"),
    ),
)
"""Facts of LMDeploy's repository: TurboMind's sources are in ``src/``."""

SGLANG_PATHS = PackagePaths(
    package="sglang",
    root="python",
    compiled=("sgl-kernel/*", "python/sglang/kernels/aot/*", "rust/*", "sgl-model-gateway/*"),
    needs=("python/pyproject*.toml",),
    elsewhere=(
        *("test/*", "docs/*", "docs_new/*", "examples/*", "benchmark/*", "docker/*", "scripts/*"),
        *("assets/*", "3rdparty/*", ".*", "*.md", "python/tools/*", "python/*.md"),
    ),
)
"""Facts of SGLang's repository: the package is in ``python/``; the sources of sglang-kernel are in
``sgl-kernel/``, later in ``python/sglang/kernels/aot/``."""


# `vllm serve` takes the model as its first argument: vllm/entrypoints/cli/serve.py.
VLLM_SERVE = Serve(api_flavor="openai", arguments=["{model}", "--max-model-len", "{context}"])
# `lmdeploy serve api_server` takes it, too: lmdeploy/cli/serve.py.
LMDEPLOY_SERVE = Serve(api_flavor="openai", arguments=["{model}", "--session-len", "{context}"])
SGLANG_SERVE = Serve(
    api_flavor="openai", arguments=["--model-path", "{model}", "--context-length", "{context}"]
)

FAMILIES = (
    overlay_family(
        name="vllm-overlay",
        project="vLLM",
        paths=VLLM_PATHS,
        serve=VLLM_SERVE,
        # Its second model runner (the default of 0.33.0) reads back from the card how many tokens
        # were sampled, and waits forever where nothing is computed:
        # vllm/v1/worker/gpu/async_utils.py.
        folder=FolderServer(
            on_a_card(VLLM_SERVE, VLLM_NO_USAGE_STATS="1", VLLM_USE_V2_MODEL_RUNNER="0"),
            vllm_log.read,
            ("--load-format", "dummy"),
            room=("--gpu-memory-utilization", "--kv-cache-dtype"),
        ),
        port=8000,
        # `vllm serve` imports them late; 0.33.0 deprecates the first one.
        modules=("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.serve"),
        # VLLM_CACHE_ROOT (vllm/envs.py) of root, the user of vLLM's own images.
        cache="/root/.cache/vllm",
    ),
    overlay_family(
        name="lmdeploy-overlay",
        project="LMDeploy",
        paths=LMDEPLOY_PATHS,
        serve=LMDEPLOY_SERVE,
        # TurboMind counts a request's tokens on the card, from launch to launch: its kernels are
        # known (simulator/card/results.cpp).
        folder=FolderServer(
            on_a_card(LMDEPLOY_SERVE.model_copy(update={"verbose": ["--log-level", "INFO"]})),
            lmdeploy_log.read,
            room=("--cache-max-entry-count", "--quant-policy"),
            samples=False,
        ),
        port=23333,
        modules=("lmdeploy.serve.openai.api_server",),
    ),
    overlay_family(
        name="sglang-overlay",
        project="SGLang",
        paths=SGLANG_PATHS,
        serve=SGLANG_SERVE,
        folder=FolderServer(
            on_a_card(SGLANG_SERVE),
            sglang_log.read,
            ("--load-format", "dummy"),
            room=("--mem-fraction-static", "--kv-cache-dtype"),
        ),
        # sglang/srt/server_args.py: it listens on 127.0.0.1, which entrypoints must change.
        port=30000,
        modules=("sglang.srt.entrypoints.http_server",),
    ),
)
