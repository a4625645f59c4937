"""A server of llama.cpp's shape, for a simulated card: what it does wrong, ``SHAPED_FAULT`` says
(tests/data/trees/faulty_card); a plugin of pytest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from builder.docker.containers import blobs_of
from builder.engines import llama_cpp
from builder.engines.layout import LAYOUT
from builder.image import contents
from builder.image.contents import Contents, ReadOptions
from builder.recipes.schema import Recipe
from simulator.selection import Capability
from support.environment import REPOSITORY, SHARED_CACHE
from support.smoke_tests import docker, hello_recipe

TREES = REPOSITORY / "tests/data/trees"
SHAPED = "builder-test/shaped-card:1"
FLAGS = [
    *("GGML_CUDA=ON", "GGML_CUDA_NO_VMM=ON", "GGML_NATIVE=OFF", "GGML_CUDA_NCCL=OFF"),
    *("LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_UI=OFF"),
    *("LLAMA_OPENSSL=OFF", "CMAKE_UNITY_BUILD=ON", "LLAMA_BUILD_NUMBER=1", "LLAMA_BUILD_COMMIT=x"),
    *("CMAKE_BUILD_WITH_INSTALL_RPATH=ON", "CMAKE_INSTALL_RPATH=\\$ORIGIN"),
]
# The library with the kernels three times: machine code for 12.0, for 9.0, and PTX for 9.0.
DOCKERFILE = """
FROM {devel} AS build
COPY . /src
COPY --from=faulty fattn.cu /src/ggml/src/ggml-cuda/
RUN --network=none cmake -S /src -B /b {flags} -DCMAKE_CUDA_ARCHITECTURES=120 \
 && cmake --build /b --target llama-server --parallel && cp -r /b/bin /out
RUN --network=none for arch in 90-real 90-virtual; do \
 cmake -S /src -B /b -DCMAKE_CUDA_ARCHITECTURES=$arch && cmake --build /b --target ggml-cuda \
 && mkdir /out/$arch && cp -a /b/bin/libggml-cuda.so* /out/$arch/ || exit 1; done
FROM {runtime}
COPY --from=build /out /opt/engine/bin
ENV LLAMA_ARG_HOST=0.0.0.0 LLAMA_ARG_PORT=8080
EXPOSE 8080
USER 10001:10001
ENTRYPOINT ["/opt/engine/bin/llama-server"]
"""


@pytest.fixture(scope="session")
def cuda_base(hello: dict[str, Any]) -> dict[str, str]:
    """The base's images to compile in and to run on."""
    key = hello["plan"]["base"]["key"][:12]
    return {stage: f"builder-base/cuda-13.0:{stage}-{key}" for stage in ("devel", "runtime")}


@pytest.fixture(scope="session")
def shaped(cuda_base: dict[str, str], made: set[str]) -> str:
    """The name of the image."""
    made.add(SHAPED)
    flags = " ".join(f"-D{flag}" for flag in FLAGS)
    docker(
        *("buildx", "build", "--provenance=false", f"--tag={SHAPED}", "--file=-"),
        f"--build-context=faulty={TREES / 'faulty_card'}",
        str(TREES / "llama_shaped"),
        text=DOCKERFILE.format(flags=flags, **cuda_base),
    )
    return SHAPED


@pytest.fixture(scope="session")
def shaped_contents(shaped: str, tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """Its contents, with its device code."""
    work = tmp_path_factory.mktemp("shaped")
    options = ReadOptions(card=Capability(12, 0), code_outside=LAYOUT.cuda)
    return contents.read_contents(blobs_of(shaped, work), work, options, SHARED_CACHE)


def recipe_of(env: Mapping[str, str], gpu: list[str] | None = None) -> Recipe:
    """A recipe of the shaped server, which gets these variables."""
    serve = llama_cpp.SERVE.model_copy(update={"env": dict(env), "seconds": 20})
    if gpu is not None:
        serve = serve.model_copy(update={"gpu": gpu})
    return hello_recipe().model_copy(update={"serve": serve})
