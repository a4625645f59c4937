"""The operands of products of MXFP4 matrices, and the kernel's parameters by their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from simulator import compilers
from simulator.compilers import Tree

SOURCE = """
// BLACKWELL_MMA_AVAILABLE
template <ggml_type type, int mmq_x, bool need_check>
    __launch_bounds__(ggml_cuda_get_physical_warp_size()*mmq_get_nwarps_device(), 1)
static __global__ void mul_mat_q(
        const char * __restrict__ x, const int * __restrict__ y, float * __restrict__ dst,
        const uint3 ntx) {
}
template <ggml_type type, int mmq_x, bool need_check>
static __global__ void mul_mat_q_stream_k_fixup(float * __restrict__ dst, float * tmp_last_tile) {}
"""


def tree(folder: Path, text: str) -> Tree:
    (folder / "mmq.cuh").write_text(text)
    return Tree(folder)


LABELS = [shape.label for shape in compilers.SHAPES]


def test_parameters_are_given_by_their_names(tmp_path: Path) -> None:
    names, lacking = compilers.matrix_parameters(tree(tmp_path, SOURCE))
    assert lacking == {}
    assert names == {
        "mul_mat_q": ["x", "y", "dst", "ntx"],
        "mul_mat_q_stream_k_fixup": ["dst", "tmp_last_tile"],
    }


UNKNOWN = "has parameters that are not known:"


@pytest.mark.parametrize(
    ("old", "new", "why", "labels"),
    [
        ("uint3 ntx", "float y_scale", f"mul_mat_q {UNKNOWN} y_scale", LABELS),
        ("bool need_check", "int prec", f"mul_mat_q {UNKNOWN} prec", LABELS),
        ("tmp_last_tile", "odd", f"mul_mat_q_stream_k_fixup {UNKNOWN} odd", LABELS[2:]),
        ("BLACKWELL", "VOLTA", "the tree has no mul_mat_q with BLACKWELL_MMA_AVAILABLE", LABELS),
    ],
)
def test_a_kernel_with_another_signature_is_named(
    tmp_path: Path, old: str, new: str, why: str, labels: list[str]
) -> None:
    _, lacking = compilers.matrix_parameters(tree(tmp_path, SOURCE.replace(old, new)))
    assert [*lacking] == labels
    assert lacking[labels[0]] == why


def test_blocks_that_share_tiles_need_the_second_kernel() -> None:
    whole, shared = compilers.MatrixShape(256, 128, 2), compilers.MatrixShape(384, 128, 2)
    assert whole.kernels == ("mul_mat_q",)
    assert shared.kernels == ("mul_mat_q", "mul_mat_q_stream_k_fixup")
    parts = compilers.product(shared)[0]["tmp_fixup"]
    assert isinstance(parts, np.ndarray)
    assert len(parts) == 2 * 128 * compilers.MATRIX_ROWS
    assert "mul_mat_q_stream_k_fixup<GGML_TYPE_MXFP4, 128, false>" in compilers.matrix_program(
        [shared]
    )
    assert "fixup" not in compilers.matrix_program([whole])


def test_the_exact_product_is_the_one_of_both_operands() -> None:
    arguments, exact = compilers.product(compilers.SHAPES[0])
    x, y = arguments["x"], arguments["y"]
    assert exact.shape == (8, compilers.MATRIX_ROWS)
    assert isinstance(x, np.ndarray)
    assert isinstance(y, np.ndarray)
    weights = dequantize(x, GGMLQuantizationType.MXFP4).reshape(compilers.MATRIX_ROWS, -1)
    # Each group of the columns as a block of MXFP4: gguf-py reads it, with halved scales as ggml.
    blocks = y[: 8 * compilers.MATRIX_DEPTH // 256 * 144].reshape(-1, 8, 144)
    groups = []
    for group in range(8):
        scale = blocks[:, :, group // 2 * 4 + group % 2, None]
        codes = blocks[:, :, 16 + 16 * group : 32 + 16 * group]
        whole = np.concatenate([scale, codes], axis=-1).reshape(-1, 17)
        groups.append(dequantize(whole, GGMLQuantizationType.MXFP4).reshape(*blocks.shape[:2], 32))
    columns = np.stack(groups, axis=2).transpose(1, 0, 2, 3).reshape(8, -1)
    assert np.array_equal(columns.astype(np.float64) @ weights.T.astype(np.float64), exact)


def test_a_kernel_is_found_in_ptx() -> None:
    name = "_Z9mul_mat_qIL9ggml_type39ELi128ELb0EEvPKcPKi"
    text = f".visible .entry {name}(\n\t.param .u64 a\n)\n.maxntid 256, 1, 1\n{{\n}}\n"
    assert compilers.mangled(text, "mul_mat_q", 128) == name
    assert compilers.mangled(text, "mul_mat_q", 8) == ""
    assert compilers.mangled(text, "mul_mat_q_stream_k_fixup", 128) == ""
    assert compilers.threads(text, name) == 256


def test_the_divisor_is_ggmls() -> None:
    for number in (1, 3, 32, 1000):
        multiplier, shift, same = np.frombuffer(compilers._divisor(number), np.uint32)
        assert same == number
        for value in (0, 1, number - 1, number, 12345, 2**20 + 7):
            high = (value * int(multiplier)) >> 32
            assert (high + value) >> int(shift) == value // number
