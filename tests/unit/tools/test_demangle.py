from __future__ import annotations

import pytest

from builder.tools.demangle import demangled, function_of


@pytest.mark.parametrize(
    ("name", "whole", "function"),
    [
        ("ggml_gallocr_reserve_n", "ggml_gallocr_reserve_n", "ggml_gallocr_reserve_n"),
        (
            "_ZN9ggml_cuda20weighted_mean_kernelEPKfS1_Pfi",
            "ggml_cuda::weighted_mean_kernel(float const*, float const*, float*, int)",
            "ggml_cuda::weighted_mean_kernel",
        ),
        ("_Z5scaleILi4EEvPf", "void scale<4>(float*)", "scale"),
        ("_ZN12_GLOBAL__N_16attendEPKf", "(anonymous namespace)::attend(float const*)", "attend"),
        ("_Znot_mangled", "_Znot_mangled", "_Znot_mangled"),
    ],
)
def test_names_of_functions(name: str, whole: str, function: str) -> None:
    assert demangled(name) == whole
    assert function_of(name) == function
