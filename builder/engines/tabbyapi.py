"""Family ``tabbyapi``: TabbyAPI's server, and the extension of PyTorch that ExLlamaV3 needs.

PyPI's wheel of ExLlamaV3 compiles its extension when it is first imported (``exllamav3/ext.py``).
Here that is done once, when the image is built.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from builder.core.platforms import Platforms, of_target
from builder.engines.debian import StagePackages, running
from builder.engines.family import EngineFamily, Finding, FolderServer, on_a_card, with_image
from builder.engines.layout import LAYOUT
from builder.engines.logs import TORCH_NO_ROOM, StatedLog, last
from builder.recipes.probes import Serve
from builder.recipes.schema import Recipe

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
