"""Names of kernels as people write them."""

from __future__ import annotations

import pytest

from builder.tools.demangle import demangled, short


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
