"""Engines that a base has installed: overlays, which patch a Python package of it, and TabbyAPI."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from builder.core.platforms import Platforms, of_target
from builder.engines.family import (
    EngineFamily,
    Finding,
    PackagePaths,
    StagePackages,
    running,
    with_image,
)
from builder.engines.layout import LAYOUT
from builder.engines.servers import YAML_KEY, FolderServer, on_a_card
from builder.recipes.probes import RunProbe, Serve
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

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
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
        image = recipe.image
        completed = with_image(
            recipe,
            port=image.port or self.port,
            health=image.health or "health",
            entrypoint=["python3", LAYOUT.start] if recipe.start else image.entrypoint,
        )
        package, version = self._patched(recipe)
        named = version.rstrip("*")
        code = f"import importlib.metadata as m; print('{package}', m.version('{package}'))"
        probe = RunProbe(run=["python3", "-c", code], contains=[f"{package} {named}"])
        known = [probe] if named and "*" not in named else []
        return completed.model_copy(update={"probe": [*known, *recipe.probe]})

    def _patched(self, recipe: Recipe) -> tuple[str, str]:
        """The package and the version in its metadata, in which ``*`` matches any text."""
        if recipe.overlay is not None:
            return recipe.overlay.package, recipe.overlay.version
        source = recipe.source
        version = source.version if isinstance(source, PypiSource) else "*"
        return self.package_paths.package, version

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        package, version = self._patched(recipe)
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


VLLM_KERNELS = (
    *("CutlassFp8BlockScaledMMKernel", "CutlassFP8ScaledMMLinearKernel"),
    *("DeepGemmFp8BlockScaledMMKernel", "FlashInferFp8DeepGEMMDynamicBlockScaledKernel"),
    *("FlashInferFP8ScaledMMLinearKernel", "MarlinFP8ScaledMMLinearKernel"),
)
"""vLLM's products of FP8 before Triton's (``vllm/model_executor/kernels/linear``)."""


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
    name_option = "--served-model-name"
    # Its second model runner (the default of 0.33.0) reads back from the card how many tokens were
    # sampled, and waits forever where nothing is computed: vllm/v1/worker/gpu/async_utils.py.
    folder = FolderServer(
        on_a_card(serve, VLLM_NO_USAGE_STATS="1", VLLM_USE_V2_MODEL_RUNNER="0"),
        "vllm",
        ("--load-format", "dummy"),
        room=("--gpu-memory-utilization", "--kv-cache-dtype"),
        # Its own kernels (_C) have no PTX.  Triton's take their place: attention and KV cache,
        # quantization, products with scales; torch.compile makes norms and the like in any case.
        # A captured graph would lack PyTorch's operators (simulator/torch).
        numbers=(
            *("--attention-backend", "TRITON_ATTN", "--compilation-config"),
            '{"cudagraph_mode": "NONE", "custom_ops": ["none", "-quant_fp8"]}',
            *("--max-num-seqs", "2", "--max-num-batched-tokens", "128", "--max-logprobs", "-1"),
            *("--kv-cache-memory-bytes", str(16 << 20)),
        ),
        numbers_env={"VLLM_DISABLED_KERNELS": ",".join(VLLM_KERNELS)},
    )
    port = 8000
    # docs/usage/security.md of vLLM: others generate at /invocations, /pause and /abort_requests.
    no_key = "asks for its key below /v1 alone, and generates for everyone at /invocations"
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
    name_option = "--model-name"
    # TurboMind counts a request's tokens on the card, from launch to launch: its kernels are known
    # (simulator/card/results.cpp).
    folder = FolderServer(
        on_a_card(serve.model_copy(update={"verbose": ["--log-level", "INFO"]})),
        "lmdeploy",
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
    name_option = "--served-model-name"
    folder = FolderServer(
        on_a_card(serve),
        "sglang",
        ("--load-format", "dummy"),
        room=("--mem-fraction-static", "--kv-cache-dtype"),
    )
    # sglang/srt/server_args.py: it listens on 127.0.0.1, which entrypoints must change.
    port = 30000
    key = YAML_KEY
    modules = ("sglang.srt.entrypoints.http_server",)


# Family ``tabbyapi``: TabbyAPI's server, and the extension of PyTorch that ExLlamaV3 needs.
#
# PyPI's wheel of ExLlamaV3 compiles its extension when it is first imported
# (``exllamav3/ext.py``). Here that is done once, when the image is built.

PARTS = ("main.py", "backends", "common", "endpoints", "LICENSE")
"""What the server consists of, in TabbyAPI's tree."""

# Flags: common/args.py and common/config_models.py.  An absolute name of a model is its path:
# main.py joins it to the directory of models, which /v1/models lists.
SERVE = Serve(
    api_flavor="tabbyapi",
    arguments=[
        *("--model-dir", "{model}/..", "--model-name", "{model}"),
        *("--max-seq-len", "{context}", "--cache-size", "{context}"),
        # Else a job needs room for 2048 tokens beside its prompt, whatever its context.
        *("--output-chunking", "false", "--disable-auth", "true"),
    ],
)


class TabbyApi(EngineFamily):
    """The base has PyTorch and ExLlamaV3; the extension and the server are added."""

    name = "tabbyapi"
    summary = "TabbyAPI's server, and the extension that ExLlamaV3 compiles when it is imported"
    template = "tabbyapi.Dockerfile.j2"
    scripts = ("extension.py", "jobs", "reproducible")
    requires_stages = ("runtime",)
    extends_base = True
    tools = "debian-trixie-gcc"
    serve = SERVE
    folder = FolderServer(on_a_card(SERVE), "tabbyapi", room=("--cache-mode",))

    def machine_code(self, recipe: Recipe) -> list[str]:
        return [f"sm_{arch}" for arch in recipe.cuda.arch]

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        for index, arch in enumerate(recipe.cuda.arch):
            if not arch.rstrip("a").isdigit():  # what torch/utils/cpp_extension.py takes
                yield ("cuda", "arch", index), "the family tabbyapi takes cards as 120 or 120a"
        if recipe.cuda.arm64 is not None:
            yield ("cuda", "arm64"), "the family tabbyapi has images for linux/amd64 only"
        if recipe.debian.runtime:
            yield ("debian", "runtime"), "name them in [runtime] packages of the base"

    def absent(self, recipe: Recipe, paths: Collection[str]) -> Iterator[Finding]:
        missing = [part for part in PARTS if part not in paths]
        if missing:
            yield ("source",), f"the source is not TabbyAPI: it has no {', '.join(missing)}"

    def complete(self, recipe: Recipe) -> Recipe:
        image = recipe.image
        port = image.port or 5000  # common/config_models.py
        # It writes logs/ below its working directory (common/logger.py), and / may be read-only.
        server = ["/usr/bin/env", "--chdir=/tmp", f"{LAYOUT.programs}/python"]
        server += [f"{LAYOUT.engine}/tabbyapi/main.py", "--model-dir", "/models"]
        server += ["--host", "0.0.0.0", "--port", str(port)]  # noqa: S104
        return with_image(
            recipe,
            port=port,
            health=image.health or "health",
            user=image.user or LAYOUT.user,
            entrypoint=image.entrypoint or server,
        )

    def debian(self, recipe: Recipe, platforms: Platforms) -> list[StagePackages]:
        packages = ("ccache", *of_target(recipe.debian.build, platforms.target))
        return [running("build", "runtime", packages, platforms)]

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        command = ["python3", "/inside/extension.py", "exllamav3.ext", "exllamav3_ext", "/layer"]
        return {"extension": [*command, *recipe.cuda.arch], "parts": PARTS}
