"""Names of kernels as people write them."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator

import pytest

from simulator import work
from simulator.work import demangled, function_of, short


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


def doubling(times: int) -> str:
    """A name whose last part stands for 2 ** times function types."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    numbers = ["", *digits, *(f"1{digit}" for digit in digits)]
    parts = (f"FvS{number}_S{number}_E" for number in numbers[:times])
    return "_Z1fFvvE" + "".join(parts)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that no other test has brought to its limits."""
    hurried = work._PROGRAM.replace("RLIMIT_CPU, (30, 30)", "RLIMIT_CPU, (1, 1)")
    monkeypatch.setattr(work, "_PROGRAM", hurried)
    found = work._process.__wrapped__(0)
    monkeypatch.setattr(work, "_process", lambda _: found)
    yield found
    found.kill()


@pytest.mark.usefixtures("process")
def test_a_name_that_stands_for_too_much_stays_as_it_is() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert demangled(doubling(6)).startswith("f(void (), void (void (), void ()), ")
    for times in (24, 30, 60):
        assert demangled(doubling(times)) == doubling(times)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_names_stay_as_they_are_without_the_process(process: subprocess.Popen[bytes]) -> None:
    many = "_Z1fP1A" + 40 * "S0_"
    assert demangled(many) == f"f({', '.join(41 * ['A*'])})"
    assert demangled(many.replace("1f", "1g")).startswith("g(A*, A*")
    process.kill()
    process.wait()
    assert demangled(many) == many
