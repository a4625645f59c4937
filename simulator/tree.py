"""The quantization kernels of a tree of ggml, and a program of our own around them.

``vecdotq.cuh`` has a function ``vec_dot_TYPE_q8_1`` for each quantization: the product of a few
values of a block with values of the other operand, in blocks of 8 bits.  ggml's kernels for one
column add them up, and so does the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import SimulatorError

HEADER = "ggml-cuda/vecdotq.cuh"
FUNCTION = re.compile(r"\bfloat\s+vec_dot_(\w+)_q8_1\s*\(\s*const\s+void\s*\*")
PREFIX = "dot_"

PROGRAM = """\
// Products of rows of blocks with one column: each thread has a row.
#include "common.cuh"
#include "vecdotq.cuh"

typedef float (*dot_t)(const void *, const block_q8_1 *, const int &, const int &);

template <ggml_type type, int vdr, dot_t dot>
static __device__ void product(
        const void * rows, const block_q8_1 * column, float * out, int blocks) {
    typedef ggml_cuda_type_traits<type> traits;
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int block = 0; block < blocks; ++block) {
        const block_q8_1 * other = column + block * (traits::qk / QK8_1);
        for (int part = 0; part < traits::qi; part += vdr) {
            sum += dot(rows, other, row * blocks + block, part);
        }
    }
    out[row] = sum;
}
"""
KERNEL = """
extern "C" __global__ void {kernel}(
        const void * rows, const block_q8_1 * column, float * out, int blocks) {{
    product<GGML_TYPE_{upper}, VDR_{upper}_Q8_1_MMVQ, vec_dot_{name}_q8_1>(
        rows, column, out, blocks);
}}
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of ggml; ``cuda`` is the directory of its CUDA sources."""

    cuda: Path

    @property
    def include(self) -> tuple[Path, ...]:
        """The directories of its headers."""
        return self.cuda, self.cuda.parent, self.cuda.parent.parent / "include"

    def text(self, name: str) -> str:
        """The text of a CUDA source; empty where the tree has none of that name."""
        file = self.cuda / name
        return file.read_text("utf-8", errors="replace") if file.is_file() else ""


def find(folder: Path) -> Tree:
    """The tree of ggml at or below ``folder``.

    Raises ``SimulatorError`` where there is none.
    """
    found = sorted(folder.rglob(HEADER), key=lambda file: (len(file.parts), file))
    if not found:
        raise SimulatorError(
            "the source has no quantization kernels of ggml",
            f"no file of it ends in {HEADER}",
            "name a recipe of llama.cpp or of one of its forks",
        )
    return Tree(found[0].parent)


def types(tree: Tree) -> tuple[dict[str, str], dict[str, str]]:
    """The quantizations that the tree computes, by kernel, and why others cannot be tried.

    Both by the name that the tree gives them (``q4_K``).
    """
    source, common = tree.text("vecdotq.cuh"), tree.text("common.cuh")
    kernels: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for name in dict.fromkeys(FUNCTION.findall(source)):
        upper = name.upper()
        needed = {
            f"VDR_{upper}_Q8_1_MMVQ": source,
            f"ggml_cuda_type_traits<GGML_TYPE_{upper}>": common,
        }
        missing = [word for word, text in needed.items() if word not in text]
        if missing:
            lacking[name] = f"the tree has no {' and no '.join(missing)}"
        else:
            kernels[name] = f"{PREFIX}{name}"
    return kernels, lacking


def program(names: Iterable[str]) -> str:
    """The CUDA source with a kernel for each of these quantizations."""
    kernels = (
        KERNEL.format(kernel=f"{PREFIX}{name}", name=name, upper=name.upper()) for name in names
    )
    return PROGRAM + "".join(kernels)
