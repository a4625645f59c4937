"""Overlays: a base that has an engine's Python package installed, and patched files of it.

A family of overlays is a subclass of ``Overlay`` in ``FAMILIES``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from builder.core.platforms import Platforms
from builder.engines import logs
from builder.engines.family import (
    EngineFamily,
    Finding,
    FolderServer,
    PackagePaths,
    on_a_card,
    with_image,
)
from builder.engines.layout import LAYOUT
from builder.recipes.probes import Serve
from builder.recipes.schema import InstalledSource, PypiSource, Recipe


class Overlay(EngineFamily):
    """The package of ``package_paths``, which PyPI has under the same name, is patched."""

    template = "overlay.Dockerfile.j2"
    scripts = ("overlay.py", "start.py", "reproducible")
    requires_stages = ("runtime",)
    tables = ("overlay", "start")
    tools = "debian-trixie-gcc"
    extends_base = True
    uses_ccache = False
    package_paths: PackagePaths
    port: int
    """The port of the server, whose page ``/health`` answers when it is ready."""

    def machine_code(self, recipe: Recipe) -> tuple[str, ...]:
        """The code is the base's."""
        return ()

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        """The package is named, and nothing but its files is changed."""
        package, source = self.package_paths.package, recipe.source
        named = {}
        if recipe.overlay is not None:
            named["overlay", "package"] = recipe.overlay.package
        elif not isinstance(source, PypiSource):
            yield ("family",), f"the family {self.name} needs [overlay]: package and version"
        if isinstance(source, PypiSource):
            named["source", "pypi"] = source.pypi
        if isinstance(source, InstalledSource):
            named["source", "installed"] = source.installed
            if recipe.patch:
                yield (
                    ("patch",),
                    "patches cannot be checked against the base's own package before the build: "
                    "use a wheel (pypi) or a commit (git) as source",
                )
        for path, name in named.items():
            if name != package:
                yield path, f"the family {self.name} patches the package {package}"
        if recipe.debian.build or recipe.debian.runtime:
            yield ("debian",), f"the family {self.name} installs no Debian packages"
        if recipe.start and recipe.image.entrypoint:
            message = "cannot be set with [[start]]: the base's entrypoint follows"
            yield ("image", "entrypoint"), message

    def complete(self, recipe: Recipe) -> Recipe:
        """The port and the health page; user and entrypoint default to the base's."""
        image = recipe.image
        return with_image(
            recipe,
            port=image.port or self.port,
            health=image.health or "health",
            entrypoint=["python3", LAYOUT.start] if recipe.start else image.entrypoint,
        )

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        """The command that lays the changed files over the package."""
        package, version = self.package_paths.package, "*"
        if recipe.overlay is not None:
            package, version = recipe.overlay.package, recipe.overlay.version
        elif isinstance(recipe.source, PypiSource):
            version = recipe.source.version
        command = ["python3", "/run/inside/overlay.py", "/run/overlay"]
        command += ["--package", package, "--version", version]
        if not recipe.image.entrypoint:
            command.append("--keep-start")
        if recipe.start:
            steps = [
                {"run": step.run, "says": step.contains, "seconds": step.seconds}
                for step in recipe.start
            ]
            command += ["--start", json.dumps(steps)]
        return {"overlay": command}


def _summary(project: str) -> str:
    return f"a base that has {project} installed, and patched files of that package"


class Vllm(Overlay):
    """``csrc/``, ``cmake/`` and everything in CUDA, C++ or Rust is compiled into shared objects; no
    wheel has ``tests/``, ``docs/`` and the like."""

    name = "vllm-overlay"
    summary = _summary("vLLM")
    package_paths = PackagePaths(
        package="vllm",
        compiled=(
            *("csrc/*", "cmake/*", "rust/*", "CMakeLists.txt", "*/CMakeLists.txt", "setup.py"),
            *("*.cu", "*.cuh", "*.c", "*.cc", "*.cpp", "*.h", "*.hpp", "*.pyx", "*.rs"),
            "*Cargo.toml",
        ),
        needs=("requirements/*", "requirements*.txt", "pyproject.toml"),
        elsewhere=(
            *("tests/*", "docs/*", "examples/*", "benchmarks/*", "tools/*", "docker/*", ".*"),
            *("*.md", "*.rst", "mkdocs.yaml", "mkdocs.yml"),
        ),
    )
    # `vllm serve` takes the model as its first argument: vllm/entrypoints/cli/serve.py.
    serve = Serve(api_flavor="openai", arguments=["{model}", "--max-model-len", "{context}"])
    # Its second model runner (the default of 0.33.0) reads back from the card how many tokens were
    # sampled, and waits forever where nothing is computed: vllm/v1/worker/gpu/async_utils.py.
    folder = FolderServer(
        on_a_card(serve, VLLM_NO_USAGE_STATS="1", VLLM_USE_V2_MODEL_RUNNER="0"),
        logs.read_vllm,
        ("--load-format", "dummy"),
        room=("--gpu-memory-utilization", "--kv-cache-dtype"),
    )
    port = 8000
    # `vllm serve` imports them late; 0.33.0 deprecates the first one.
    modules = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.serve")
    # VLLM_CACHE_ROOT (vllm/envs.py) of root, the user of vLLM's own images.
    cache = "/root/.cache/vllm"


class Lmdeploy(Overlay):
    """TurboMind's sources are in ``src/``."""

    name = "lmdeploy-overlay"
    summary = _summary("LMDeploy")
    package_paths = PackagePaths(
        package="lmdeploy",
        compiled=("src/*", "cmake/*", "3rdparty/*", "CMakeLists.txt", "setup.py", "builder/*"),
        needs=("requirements/*", "requirements*.txt", "pyproject.toml"),
        elsewhere=(
            *("tests/*", "autotest/*", "docs/*", "examples/*", "benchmark/*", "docker/*", "k8s/*"),
            *("resources/*", "scripts/*", "eval/*", ".*", "*.md", "MANIFEST.in"),
        ),
    )
    # `lmdeploy serve api_server` takes it, too: lmdeploy/cli/serve.py.
    serve = Serve(api_flavor="openai", arguments=["{model}", "--session-len", "{context}"])
    # TurboMind counts a request's tokens on the card, from launch to launch: its kernels are known
    # (simulator/card/results.cpp).
    folder = FolderServer(
        on_a_card(serve.model_copy(update={"verbose": ["--log-level", "INFO"]})),
        logs.read_lmdeploy,
        room=("--cache-max-entry-count", "--quant-policy"),
        samples=False,
    )
    port = 23333
    modules = ("lmdeploy.serve.openai.api_server",)


class Sglang(Overlay):
    """The package is in ``python/``; the sources of sglang-kernel are in ``sgl-kernel/``, later in
    ``python/sglang/kernels/aot/``."""

    name = "sglang-overlay"
    summary = _summary("SGLang")
    package_paths = PackagePaths(
        package="sglang",
        root="python",
        compiled=("sgl-kernel/*", "python/sglang/kernels/aot/*", "rust/*", "sgl-model-gateway/*"),
        needs=("python/pyproject*.toml",),
        elsewhere=(
            *("test/*", "docs/*", "docs_new/*", "examples/*", "benchmark/*", "docker/*"),
            *("scripts/*", "assets/*", "3rdparty/*", ".*", "*.md", "python/tools/*"),
            "python/*.md",
        ),
    )
    serve = Serve(
        api_flavor="openai", arguments=["--model-path", "{model}", "--context-length", "{context}"]
    )
    folder = FolderServer(
        on_a_card(serve),
        logs.read_sglang,
        ("--load-format", "dummy"),
        room=("--mem-fraction-static", "--kv-cache-dtype"),
    )
    # sglang/srt/server_args.py: it listens on 127.0.0.1, which entrypoints must change.
    port = 30000
    modules = ("sglang.srt.entrypoints.http_server",)


FAMILIES = (Vllm(), Lmdeploy(), Sglang())
