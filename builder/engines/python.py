"""Family ``python-sdist``: a Python package with CUDA parts, built by its own PEP 517 backend."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.core.platforms import Platforms, of_target
from builder.engines import llama_cpp
from builder.engines.cmake_calls import Command, Definitions, definition_value, merged, truth
from builder.engines.family import (
    EngineFamily,
    Finding,
    FolderServer,
    Packages,
    StagePackages,
    native_lock,
    on_a_card,
    required,
    running,
    with_image,
)
from builder.engines.layout import LAYOUT
from builder.engines.llama_cpp import ALWAYS, COMPILED, FROM_RECIPE, NO_VMM, Ggml, cpu_definitions
from builder.engines.logs import TORCH_NO_ROOM, StatedLog, last
from builder.recipes.probes import Serve
from builder.recipes.schema import Cmake, PypiSource, Recipe


class PythonSdist(EngineFamily):
    """The backend calls cmake once."""

    name = "python-sdist"
    summary = "a Python package with CUDA parts, built by its own PEP 517 backend"
    template = "python-sdist.Dockerfile.j2"
    scripts = ("jobs", "relink.py", "reproducible")
    required_tables = {"python": "a [python] table"}
    requires_entrypoint = True
    relied = llama_cpp.FOR_ANY_CPU

    def machine_code(self, recipe: Recipe) -> list[str]:
        """The code of ggml's library, where the package has one."""
        if _has_ggml(recipe):
            return llama_cpp.machine_code(recipe)
        return [*super().machine_code(recipe)]

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        """Its source is a release."""
        if not isinstance(recipe.source, PypiSource):
            yield ("source",), "the family python-sdist takes its source from PyPI: pypi = NAME"

    def packages(self, recipe: Recipe, folder: Path, platforms: Platforms) -> Packages:
        """The wheels that build the package, and those that it needs."""
        locked = native_lock(recipe, folder, platforms)
        return {"build-wheels": locked.build, "runtime-wheels": locked.runtime}

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        """The instructions of ggml's CPU code, where the package has it."""
        return llama_cpp.cpu_definitions(platforms) if _has_ggml(recipe) else {}

    def own_definitions(self, recipe: Recipe) -> list[Definitions]:
        """The definitions of the only call."""
        return [required(recipe.python, recipe).define]

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        """Config settings of the backend: cmake's definitions, then the recipe's own settings."""
        (layers,) = self.layers(recipe, platforms)
        settings = {f"cmake.define.{name}": value for name, value in merged(layers).items()}
        settings |= required(recipe.python, recipe).config
        arguments: list[str] = []
        for name, value in settings.items():
            arguments += ["--config-settings", f"{name}={definition_value(value)}"]
        return {"settings": arguments}


def _has_ggml(recipe: Recipe) -> bool:
    return truth(required(recipe.python, recipe).define.get("GGML_CUDA", False))


# Family ``ggml-python``: programs with ggml inside, from several cmake calls, and a server in
# Python that starts them.
#
# The programs of each cmake call are installed with the call's own libraries beside them, in the
# directory in which the server looks for them: two calls may build libraries of the same name.


class GgmlPython(Ggml):
    """Each call of cmake has a directory of its own."""

    name = "ggml-python"
    summary = "programs with ggml inside, from several cmake calls, and a server in Python"
    template = "ggml-python.Dockerfile.j2"
    required_tables = {
        "cmake": "[[cmake]] tables",
        "python": "a [python] table: lock, requirements",
    }
    tables = ("layout",)
    requires_entrypoint = True
    debian_build = ("patchelf",)
    debian_runtime = ("python3",)
    relied = COMPILED

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        """The calls do not overwrite each other's libraries, and the server gets its port."""
        if recipe.python is not None and (recipe.python.define or recipe.python.config):
            yield ("python",), "the family ggml-python compiles no Python package"
        image = recipe.image  # the server's default port is not known
        passed = (*image.entrypoint, *image.command, *image.env.values())
        if image.port and str(image.port) not in passed:
            message = f"pass {image.port} to the server in entrypoint, command or env"
            yield ("image", "port"), message
        places: set[str] = set()
        for index, call in enumerate(recipe.cmake):
            place = _place(call)
            if not call.targets:
                message = "name the targets: the default build of some trees downloads"
                yield ("cmake", index), message
            if place in places:
                yield ("cmake", index), f"two cmake calls would put their libraries in {place}"
            places.add(place)
            if NO_VMM in call.define:
                yield ("cmake", index, "define", NO_VMM), FROM_RECIPE[NO_VMM]

    def packages(self, recipe: Recipe, folder: Path, platforms: Platforms) -> Packages:
        """The wheels of the server."""
        return {"runtime-wheels": native_lock(recipe, folder, platforms).runtime}

    def definitions(self, recipe: Recipe, platforms: Platforms) -> Definitions:
        """As for llama.cpp, without the pages of its server, which another one hides."""
        return {
            **ALWAYS,
            **cpu_definitions(platforms),
            "LLAMA_BUILD_UI": False,
            "LLAMA_BUILD_WEBUI": False,
            NO_VMM: not recipe.cuda.vmm,
        }

    def install(
        self, recipe: Recipe, platforms: Platforms, number: int, call: Cmake
    ) -> list[Command]:
        """The programs, with the libraries that they need beside them."""
        command = ["python3", "/inside/collect.py", "--everywhere", "--strip"]
        command.append(f"{platforms.triplet}-strip")
        return [[*command, f"/build/{number}", _place(call), *call.targets]]


def _place(call: Cmake) -> str:
    return f"{LAYOUT.engine}/{call.place or 'bin'}"


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


# Its log: backends/exllamav3/model.py states the cache in tokens, and no sizes.
TOKENS = re.compile(r"Using configured cache_size: (\d{1,12}) tokens\.")
# The second in ExLlamaV3's model/model_ls.py, where a part of the model does not fit.
NO_ROOM = re.compile(rf"{TORCH_NO_ROOM}|Insufficient VRAM in split for model and cache")
LOADED = "Model successfully loaded."


def read_log(log: str) -> StatedLog:
    """What TabbyAPI's log says about its start: the KV cache in tokens, and a card without room."""
    room = NO_ROOM.search(log)
    tokens = last(TOKENS, log) if LOADED in log else None
    return StatedLog(kv_tokens=int(tokens) if tokens else None, no_room=room[0] if room else "")


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
    folder = FolderServer(on_a_card(SERVE), read_log, room=("--cache-mode",))

    def machine_code(self, recipe: Recipe) -> list[str]:
        """The code of the extension."""
        return [f"sm_{arch}" for arch in recipe.cuda.arch]

    def rules(self, recipe: Recipe) -> Iterator[Finding]:
        """PyTorch compiles for its cards, and the base has the packages to run with."""
        for index, arch in enumerate(recipe.cuda.arch):
            if not arch.rstrip("a").isdigit():  # what torch/utils/cpp_extension.py takes
                yield ("cuda", "arch", index), "the family tabbyapi takes cards as 120 or 120a"
        if recipe.cuda.arm64 is not None:
            yield ("cuda", "arm64"), "the family tabbyapi has images for linux/amd64 only"
        if recipe.debian.runtime:
            yield ("debian", "runtime"), "name them in [runtime] packages of the base"

    def absent(self, recipe: Recipe, paths: Collection[str]) -> Iterator[Finding]:
        """The parts of a server that is another one."""
        missing = [part for part in PARTS if part not in paths]
        if missing:
            yield ("source",), f"the source is not TabbyAPI: it has no {', '.join(missing)}"

    def complete(self, recipe: Recipe) -> Recipe:
        """The server as entrypoint, its port and its health page."""
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
        """It compiles on the base's stage ``runtime``, on the target platform."""
        packages = ("ccache", *of_target(recipe.debian.build, platforms.target))
        return [running("build", "runtime", packages, platforms)]

    def variables(self, recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:
        """The command that compiles the extension, and the parts of the server."""
        command = ["python3", "/inside/extension.py", "exllamav3.ext", "exllamav3_ext", "/layer"]
        return {"extension": [*command, *recipe.cuda.arch], "parts": PARTS}
