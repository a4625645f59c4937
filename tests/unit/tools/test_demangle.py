"""Names of kernels as people write them."""

from __future__ import annotations

import pytest

from builder.tools.demangle import demangled, function_of, short


@pytest.mark.parametrize(
    ("mangled", "name", "kernel"),
    [
        ("_Z5plainPf", "plain(float*)", "plain"),
        ("_Z5heavyILi64EEvPfi", "void heavy<64>(float*, int)", "heavy<64>"),
        ("_ZN2ns1kIXadL_Z1fiEEEEvv", "void ns::k<&(f(int))>()", "ns::k<&(f(int))>"),
        (
            "_ZN2ns21_GLOBAL__N__8a1c2f_k_4mineILi1EEEvPf",
            "void ns::(anonymous namespace)::mine<1>(float*)",
            "ns::(anonymous namespace)::mine<1>",
        ),
        ("__nv_static_25__4164b598_4_k_cu_acc5a52f__Z4privPf", "priv(float*)", "priv"),
        ("_ZN1aplEPFvvE", "a::operator+(void (*)())", "a::operator+"),
        ("cutlass_gemm", "cutlass_gemm", "cutlass_gemm"),
        ("_Zno name", "_Zno name", "name"),
        ("__nv_static_without", "__nv_static_without", "__nv_static_without"),
        ("", "", ""),
    ],
)
def test_names(mangled: str, name: str, kernel: str) -> None:
    assert demangled(mangled) == name
    assert short(name) == kernel


@pytest.mark.parametrize(
    ("mangled", "function"),
    [
        ("ggml_gallocr_reserve_n", "ggml_gallocr_reserve_n"),
        ("_ZN9ggml_cuda20weighted_mean_kernelEPKfS1_Pfi", "ggml_cuda::weighted_mean_kernel"),
        ("_Z5scaleILi4EEvPf", "scale"),
        ("_ZNK11llama_model13create_memoryERKi", "llama_model::create_memory"),
        ("_ZN12_GLOBAL__N_16attendEPKf", "attend"),
        ("_Znot_mangled", "_Znot_mangled"),
    ],
)
def test_functions_without_arguments(mangled: str, function: str) -> None:
    assert function_of(mangled) == function
