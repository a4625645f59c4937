"""Which kernels of a tree are found, and why others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator import SimulatorError, compilers
from simulator.compilers import Tree, find_kernels, kernel_program, types
from support.environment import REPOSITORY

QUANTIZED = REPOSITORY / "tests" / "data" / "quantized"


def made(folder: Path, header: str, common: str = "") -> Tree:
    cuda = folder / "vendor" / "ggml" / "src" / "ggml-cuda"
    cuda.mkdir(parents=True)
    (cuda / "vecdotq.cuh").write_text(header)
    (cuda / "common.cuh").write_text(common)
    return find_kernels(folder)


FUNCTION = """
static __device__ __forceinline__ float vec_dot_{0}_q8_1(
    const void * __restrict__ vbq, const block_q8_1 * y, const int & kbx, const int & iqs) {{
"""


def test_each_type_has_a_kernel_or_a_reason(tmp_path: Path) -> None:
    header = "".join(map(FUNCTION.format, ("q4_K", "turbo3", "half")))
    header += "static float vec_dot_q4_0_q8_1_impl(const int * v, const int * u) {\n"
    header += "#define VDR_Q4_K_Q8_1_MMVQ 2\n#define VDR_TURBO3_Q8_1_MMVQ 2\n"
    common = "struct ggml_cuda_type_traits<GGML_TYPE_Q4_K> {\nstruct ggml_cuda_type_traits<"
    common += "GGML_TYPE_TURBO3> {\n"
    tree = made(tmp_path, header, common)
    kernels, lacking = types(tree)
    assert kernels == {"q4_K": "dot_q4_K", "turbo3": "dot_turbo3"}
    assert lacking == {
        "half": "the tree has no VDR_HALF_Q8_1_MMVQ and no ggml_cuda_type_traits<GGML_TYPE_HALF>"
    }
    found = compilers.kernels_of(tree)
    assert [*found.cases] == ["q4_K"]
    assert found.not_compared["turbo3"] == "gguf-py does not know it"
    assert found.not_compared["q6_K"] == "the tree has no vec_dot_q6_K_q8_1"
    assert found.not_compared["mmq mxfp4 x8"] == (
        "the tree has no mul_mat_q with BLACKWELL_MMA_AVAILABLE"
    )


def test_every_type_of_gguf_is_tried_or_named() -> None:
    found = compilers.kernels_of(find_kernels(QUANTIZED))
    assert {*found.cases} == {"q4_0", "q4_1", "q8_0"}
    assert {"q2_K", "iq3_s", "mxfp4", "tq1_0", "q1_0"} <= {*found.not_compared}
    assert not {*found.cases} & {*found.not_compared}


def test_the_program_has_a_kernel_for_each_type() -> None:
    text = kernel_program(["q4_K", "iq3_s"])
    assert "void dot_q4_K(" in text
    assert "product<GGML_TYPE_IQ3_S, VDR_IQ3_S_Q8_1_MMVQ, vec_dot_iq3_s_q8_1>" in text


def test_headers_are_found_from_the_directory_of_the_kernels(tmp_path: Path) -> None:
    tree = made(tmp_path, "")
    ggml = tmp_path / "vendor" / "ggml"
    assert tree.cuda == ggml / "src" / "ggml-cuda"


def test_a_source_without_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match="has no quantization kernels of ggml"):
        find_kernels(tmp_path)
    with pytest.raises(SimulatorError, match="no kernel that can be compared") as refused:
        compilers.kernels_of(made(tmp_path, FUNCTION.format("turbo3")))
    assert "turbo3: the tree has no VDR_TURBO3" in refused.value.args[1]
