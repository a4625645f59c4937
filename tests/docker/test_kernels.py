"""The kernel ledger against NVIDIA's own tools, on what the base's nvcc makes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from simulator import ledger
from simulator.ledger import Kernel
from simulator.selection import Capability
from support.commands import Builder
from support.cuda_tools import compile_in
from support.smoke_tests import SmokeTest

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

SOURCE = """
template <int N> __global__ void heavy(float *p, int n) {
  float a[N];
  for (int i = 0; i < N; i++) a[i] = p[i * n + threadIdx.x];
  for (int k = 0; k < n; k++)
#pragma unroll
    for (int i = 0; i < N; i++) a[i] = a[i] * a[(i + 7) % N] + a[(i + 3) % N];
#pragma unroll
  for (int i = 0; i < N; i++) p[i * n + threadIdx.x] = a[i];
}
template __global__ void heavy<64>(float *, int);
__global__ void array(float *p, int i) {
  float a[100];
  for (int k = 0; k < 100; k++) a[k] = p[k] * k;
  p[0] = a[i];
}
__global__ void shared(float *p) {
  __shared__ float s[10000];
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = s[1023 - threadIdx.x];
}
extern __shared__ float dynamic[];
__global__ void asks_for_100_kb(float *p) {
  dynamic[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = dynamic[25599 - threadIdx.x];
}
__global__ void __launch_bounds__(256, 2) bounded(float *p) { p[threadIdx.x] *= 3; }
__global__ void __cluster_dims__(2, 2, 1) clustered(float *p) { p[threadIdx.x] *= 4; }
__device__ __noinline__ float deep(float x, int n) { return n ? deep(x * x, n - 1) + x : x; }
__global__ void calls(float *p, int n) { p[0] = deep(p[1], n); }
static __global__ void internal(float *p) { p[threadIdx.x] *= 6; }
int main() { internal<<<1, 1>>>(nullptr); }
"""
HEAVY, ARRAY, SHARED = "_Z5heavyILi64EEvPfi", "_Z5arrayPfi", "_Z6sharedPf"
GPUS = ("sm_90", "sm_120a")


STUBS = """
#include <cassert>
#include <cstdio>
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 1200
#define REAL(code)
#define STUB(code) code
#else
#define REAL(code) code
#define STUB(code)
#endif
#define WORK REAL(p[threadIdx.x] = p[threadIdx.x] * 2 + n;)
__global__ void prints_and_traps(float *p, int n) { WORK STUB(printf("no code\\n"); __trap();) }
__global__ void prints(float *p, int n) { WORK STUB(printf("%d: no code\\n", n);) }
__global__ void traps(float *p, int n) { WORK STUB(__trap();) }
__global__ void breaks(float *p, int n) { WORK STUB(asm volatile("brkpt;");) }
__global__ void asserts(float *p, int n) { WORK STUB(assert(0 && "no");) }
__global__ void is_empty(float *p, int n) { WORK }
__global__ void first_thread_traps(float *p, int n) {
  WORK STUB(if (threadIdx.x + blockIdx.x * blockDim.x < n) { printf("%d\\n", n); __trap(); })
}
__global__ void checks_its_input(float *p, int n) { if (n > 3) __trap(); p[threadIdx.x] = n; }
__global__ void stores(int *p) { *p = 1; }
__global__ void counts(int *p) { atomicAdd(p, 1); }
__global__ void nothing() {}
"""
HOLLOW = {"prints_and_traps", "prints", "traps", "breaks", "asserts", "is_empty"} | {
    "first_thread_traps"
}


@pytest.fixture(scope="module")
def compiled(devel: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with machine code (zstd), one with PTX (LZ4), a cubin of each GPU, and its log."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "k.cu").write_text(SOURCE)
    (folder / "stubs.cu").write_text(STUBS)
    nvcc = "nvcc -maxrregcount=32"
    both = "-gencode=arch=compute_120a,code=sm_120a -gencode=arch=compute_90,code=sm_90"
    ptx = "-gencode=arch=compute_90,code=compute_90"
    of_120 = "-gencode=arch=compute_120a,code=sm_120a"
    family = f"{of_120} -gencode=arch=compute_121a,code=sm_121a"
    virtual = f"{of_120} -gencode=arch=compute_121a,code=compute_121a"
    calls = [
        f"{nvcc} --compress-mode=size {both} -o packed k.cu",
        f"{nvcc} --compress-mode=speed {ptx} -o ptx k.cu",
        f"nvcc {family} -shared -Xcompiler -fPIC -o stubs.so stubs.cu",
        f"nvcc {virtual} -shared -Xcompiler -fPIC -o stubs-ptx.so stubs.cu",
        *(f"{nvcc} -Xptxas=-v -cubin -arch={gpu} -o {gpu}.cubin k.cu 2>{gpu}.log" for gpu in GPUS),
    ]
    return compile_in(devel, folder, *calls)


def kernels_of(file: Path, card: str) -> dict[str, Kernel]:
    with file.open("rb") as stream:
        found = list(ledger.read(stream, Capability.parse(card)))
    return {kernel.name: kernel for binary in found for kernel in binary.kernels}


def figures(pattern: str, text: str) -> dict[str, tuple[int, ...]]:
    """By the name in the first group, the numbers in the others; 0 for those that are absent."""
    return {
        found[1]: tuple(int(number or 0) for number in found.groups()[1:])
        for found in re.finditer(pattern, text)
    }


@pytest.mark.parametrize(("gpu", "card"), [("sm_90", "9.0"), ("sm_120a", "12.0")])
def test_the_ledger_agrees_with_the_compiler_and_cuobjdump(
    compiled: Path, cuobjdump: Path, gpu: str, card: str
) -> None:
    found = kernels_of(compiled / "packed", card)
    log = (compiled / f"{gpu}.log").read_text()
    said = figures(
        r"Function properties for (\S+)\n *(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads\nptxas info +: Used (\d+) registers, used \d+ barriers"
        r"(?:, \d+ bytes cumulative stack size)?(?:, (\d+) bytes smem)?\n",
        log,
    )
    assert said.keys() == found.keys()
    for name, (stack, stores, loads, registers, shared) in said.items():
        kernel = found[name]
        assert (kernel.spill_stores, kernel.spill_loads) == (stores, loads), name
        assert (kernel.registers, kernel.shared, kernel.local) == (registers, shared, stack), name
    assert said[HEAVY][1] > 500
    assert said[SHARED][4] == 40_000
    assert said[ARRAY][:3] == (400, 0, 0)

    listed = subprocess.run(
        [cuobjdump, "--dump-resource-usage", compiled / f"{gpu}.cubin"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    usage = figures(r"Function (\S+):\n *REG:(\d+) STACK:(\d+) SHARED:(\d+)", listed)
    assert usage == {
        # The driver's kilobyte is a part of the section, which cuobjdump prints.
        name: (kernel.registers, kernel.local, kernel.shared + 1024)
        for name, kernel in found.items()
    }


def test_limits_of_launches(compiled: Path) -> None:
    found = kernels_of(compiled / "packed", "12.0")
    assert {name: kernel.threads for name, kernel in found.items() if kernel.threads} == {
        "_Z7boundedPf": 256
    }
    assert {name: kernel.cluster for name, kernel in found.items() if kernel.cluster} == {
        "_Z9clusteredPf": 4
    }


def test_ptx_has_the_same_kernels(compiled: Path) -> None:
    found = kernels_of(compiled / "ptx", "12.0")
    assert found.keys() == kernels_of(compiled / "packed", "12.0").keys()
    assert found["_Z7boundedPf"].threads == 256
    assert kernels_of(compiled / "ptx", "8.9") == {}


def test_the_verdict_has_the_engines_own_kernels(hello: dict[str, Any]) -> None:
    found = hello["verdict"]["kernels"]
    assert found["card"] == "12.0"
    (own,) = found["libraries"]
    assert (own["library"], own["codes"], own["kernels"]) == ("libhello-cuda.so", ["sm_120"], 2)
    assert (own["spills"], own["worst"]) == (0, [])


def image_with(smoke_test: SmokeTest, program: Path) -> str:
    """An image with a program and nothing else."""
    context = f"--build-context=compiled={program.parent}"
    return smoke_test.build(
        f"FROM scratch\nCOPY --from=compiled {program.name} /opt/program\n", context
    )


def test_the_command_lists_and_fails(
    compiled: Path, smoke_test: SmokeTest, builder: Builder
) -> None:
    packed, ptx = (image_with(smoke_test, compiled / name) for name in ("packed", "ptx"))
    found = json.loads(builder("kernels", packed, "--json").stdout)
    assert found["libraries"] == [{"path": "/opt/program", "code": {"sm_120a": 2}}]
    first = found["kernels"][0]
    assert (first["name"], first["mangled"]) == ("void heavy<64>(float*, int)", HEAVY)
    assert first["spills"] == first["spill_stores"] + first["spill_loads"] > 0
    assert len(found["kernels"]) == 8

    none = builder("kernels", ptx, "--capability", "8.9")
    assert none.returncode == 8
    assert "runs on a card of compute capability 8.9" in none.stderr
    assert "its code is for compute_90" in none.stderr


@pytest.mark.parametrize("file", ["stubs.so", "stubs-ptx.so"])
def test_a_kernel_that_only_traps_on_a_card_is_told_from_one_that_computes(
    compiled: Path, file: str
) -> None:
    for card, hollow in (("12.0", set()), ("12.1", HOLLOW)):
        with (compiled / file).open("rb") as stream:
            every = [*ledger.read(stream, Capability.parse(card))]
        (found,) = (each for each in every if each.kernels)
        idle = {kernel.name: kernel.idle for kernel in found.kernels}
        named = {name: f"_Z{len(name)}{name}Pfi" for name in hollow}
        empty = {"_Z7nothingv"} | {named[name] for name in hollow & {"is_empty"}}
        assert {name for name, kind in idle.items() if kind == "empty"} == empty
        assert {name for name, kind in idle.items() if kind == "traps"} == {*named.values()} - empty
        body = found.body(Capability.parse(card))
        assert body is not None
        assert {*body.hollow} == {*named.values()}
