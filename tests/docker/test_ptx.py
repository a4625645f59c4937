"""hello-sm120's kernels, as the base's nvcc compiles them, in the PTX interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ptxlab.build import build
from ptxlab.interpreter import Library
from support.environment import REPOSITORY
from support.smoke_tests import docker

pytestmark = pytest.mark.docker

VOCABULARY, HIDDEN = 96, 64  # engines/hello-sm120/include/hello.h
COMPILE = """
nvcc -ptx -std=c++20 -arch=sm_120 -I/source/include /source/src/hello_cuda.cu -o /tmp/hello.ptx
cat /tmp/hello.ptx
"""


@pytest.fixture(scope="module")
def ptx(images: dict[str, str]) -> str:
    mount = f"--volume={REPOSITORY / 'engines/hello-sm120'}:/source:ro"
    return docker("run", "--rm", "--network=none", mount, images["devel"], "sh", "-euc", COMPILE)


@pytest.fixture(scope="module")
def interpreter() -> Library:
    """Compiled once for all tests: a module's fixtures still have the cache of the user."""
    return Library(build() / "libptx.so")


def test_hellos_kernels_compute_what_its_cpu_path_computes(ptx: str, interpreter: Library) -> None:
    module = interpreter.load(ptx)
    update, logits = (
        next(k for k in module.kernels() if name in k)
        for name in ("update_state", "compute_logits")
    )
    assert module.lacks(update) == module.lacks(logits) == []
    rng = np.random.default_rng(1)
    # struct Memory: embedding, recurrent, output, bias; state, product, logits.
    sizes = [
        VOCABULARY * HIDDEN,
        HIDDEN * HIDDEN,
        VOCABULARY * HIDDEN,
        VOCABULARY,
        HIDDEN,
        HIDDEN,
        VOCABULARY,
    ]
    memory = rng.integers(-8, 9, sum(sizes)).astype(np.float32)
    embedding, recurrent, output, bias, state, product, result = np.split(
        memory, np.cumsum(sizes)[:-1]
    )
    for symbol in (3, 95, 40):
        product[:] = recurrent.reshape(HIDDEN, HIDDEN) @ state
        wanted = np.clip(
            np.rint((embedding.reshape(VOCABULARY, HIDDEN)[symbol] + product) / 8), -15, 15
        )
        module.run(update, [memory, symbol], block=HIDDEN)
        assert (state == wanted).all()
        module.run(logits, [memory], grid=VOCABULARY // 4, block=128)
        assert (result == output.reshape(VOCABULARY, HIDDEN) @ state + bias).all()
