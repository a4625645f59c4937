"""Family ``tabbyapi``: TabbyAPI's server, and the extension of PyTorch that ExLlamaV3 needs.

PyPI's wheel of ExLlamaV3 compiles its extension when it is first imported (``exllamav3/ext.py``).
Here that is done once, when the image is built.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from builder.families import tabbyapi_log
from builder.families.family import EngineFamily, Finding, FolderServer, on_a_card, with_image
from builder.families.layout import LAYOUT
from builder.platforms import Platforms
from builder.recipes.schema import Recipe, Serve

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


def _rules(recipe: Recipe) -> Iterator[Finding]:
    for index, arch in enumerate(recipe.cuda.arch):
        if not arch.rstrip("a").isdigit():  # what torch/utils/cpp_extension.py takes
            yield ("cuda", "arch", index), "the family tabbyapi takes cards as 120 or 120a"
    if recipe.cuda.arm64 is not None:
        yield ("cuda", "arm64"), "the family tabbyapi has images for linux/amd64 only"
    if recipe.debian.runtime:
        yield ("debian", "runtime"), "name them in [runtime] packages of the base"


def _absent(recipe: Recipe, paths: Collection[str]) -> Iterator[Finding]:  # noqa: ARG001
    missing = [part for part in PARTS if part not in paths]
    if missing:
        yield ("source",), f"the source is not TabbyAPI: it has no {', '.join(missing)}"


def _complete(recipe: Recipe) -> Recipe:
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


def _variables(recipe: Recipe, platforms: Platforms) -> Mapping[str, Any]:  # noqa: ARG001
    command = ["python3", "/inside/extension.py", "exllamav3.ext", "exllamav3_ext", "/layer"]
    return {"extension": [*command, *recipe.cuda.arch], "parts": PARTS}


FAMILY = EngineFamily(
    name="tabbyapi",
    summary="TabbyAPI's server, and the extension that ExLlamaV3 compiles when it is imported",
    template="tabbyapi.Dockerfile.j2",
    scripts=("extension.py", "jobs", "reproducible"),
    requires_stages=("runtime",),
    extends_base=True,
    compiles_at_target=True,
    tools="debian-trixie-gcc",
    machine_code=lambda recipe: [f"sm_{arch}" for arch in recipe.cuda.arch],
    serve=SERVE,
    folder=FolderServer(on_a_card(SERVE), tabbyapi_log.read, room=("--cache-mode",)),
    rules=_rules,
    absent=_absent,
    complete=_complete,
    debian_build=("ccache",),
    variables=_variables,
)
