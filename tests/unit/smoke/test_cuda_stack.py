"""Torch, CUDA's runtimes, extensions and compilers of an image belong together."""

from __future__ import annotations

import pytest

from builder.contents.contents import Contents, File
from builder.smoke.cuda_stack import check
from builder.smoke.verdict import Check
from builder.tools.elf import ElfFile, Symbols
from support.smoke_tests import context_of, of_arch

SITE = "/opt/engine/lib/python3.13/site-packages"
PARSED = ElfFile("x86-64", "dyn", None, (), (), (), None, ())
CPP_EXT = f"{SITE}/flashinfer/jit/cpp_ext.py"
TRITON = f"{SITE}/triton/backends/nvidia"
PTXAS, BLACKWELL = f"{TRITON}/bin/ptxas", f"{TRITON}/bin/ptxas-blackwell"


def found(
    *files: File | str, env: tuple[str, ...] = ("PATH=/opt/engine/bin:/usr/bin",), arch: str = "120"
) -> dict[str, Check]:
    """The checks by subject; a path stands for an empty file, and its folders are there."""
    known = [each if isinstance(each, File) else File(each, "file") for each in files]
    every = {file.path: file for file in known}
    for path in [*every]:
        parts = path.split("/")
        for count in range(2, len(parts)):
            folder = "/".join(parts[:count])
            every.setdefault(folder, File(folder, "directory"))
    contents = Contents(every, {"config": {"Env": [*env]}}, (), 0)
    return {each.subject: each for each in check(context_of(contents, of_arch(arch)))}


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        # As the wheels torch 2.11.0 and 2.11.0+cpu have it.
        ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip = None\n", "CUDA 13.0"),
        ("__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\nhip = None\n", ""),
        ("__version__ = '2.1.0+cpu'\ncuda = None\n", ""),
        ("__version__ = '2.1.0'\ncuda = '12.1'\n", "CUDA 12.1"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", ""),
    ],
)
def test_torch_for_cpu_is_found(text: str, cuda: str) -> None:
    path = f"{SITE}/torch/version.py"
    of_torch = found(File(path, "file", text=text))["torch has CUDA"]
    assert of_torch.passed is bool(cuda)
    assert of_torch.found == (cuda or f"{path}: built without CUDA")


@pytest.mark.parametrize(
    ("second", "good"),
    [
        (f"{SITE}/nvidia/cu13/lib/libcudart.so.13", True),
        (f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12", False),
        (f"{SITE}/torchvision.libs/libcudart.faf08d9a.so.13", True),
        (f"{SITE}/torchvision.libs/libcudart.faf08d9a.so.12", False),
        (f"{SITE}/x.libs/libcudart-5b1a4d31.so.12.8.90", False),
    ],
)
def test_two_runtimes_of_different_major_versions_are_found(second: str, good: bool) -> None:
    first = "/usr/local/cuda/lib/libcudart.so.13"
    runtime = found(*(File(path, "file", elf=PARSED) for path in (first, second)))[
        "one CUDA runtime"
    ]
    assert runtime.passed is good
    assert good or runtime.found == f"{second} beside version 13"


def library(path: str, defined: set[str], undefined: set[str]) -> File:
    symbols = Symbols(frozenset(defined), frozenset(undefined))
    return File(path, "file", elf=PARSED, torch=symbols)


def test_an_extension_for_another_torch_is_found() -> None:
    torch = library(f"{SITE}/torch/lib/libc10.so", {"_ZN3c104warnEv"}, set())
    fits = library(f"{SITE}/vllm/_C.so", set(), {"_ZN3c104warnEv"})
    subject = "torch has the symbols of its extensions"
    assert found(torch, fits)[subject].passed
    other = library(f"{SITE}/vllm/_C.so", set(), {"_ZN3c104warnEv", "_ZN3c105errorEv", "_ZN2at1f"})
    check_of = found(torch, other)[subject]
    assert not check_of.passed
    assert check_of.found == f"{SITE}/vllm/_C.so needs _ZN2at1f and 1 more"
    assert subject not in found("/opt/engine/lib/libggml.so")
    # What is named for another torch is not loaded.
    version = File(f"{SITE}/torch/version.py", "file", text="__version__ = '2.11.0'\ncuda = '13.0'")
    for name, good in (("addon_torch25-cuda.so", True), ("addon_torch211-cuda.so", False)):
        other = library(f"{SITE}/x/lib{name}", set(), {"_ZN2at1f"})
        assert found(torch, version, other)[subject].passed is good


@pytest.mark.parametrize(
    ("files", "env", "good"),
    [
        (["/usr/bin/nvcc"], "PATH=/opt/engine/bin:/usr/bin", True),
        (["/usr/local/cuda/bin/nvcc"], "PATH=/usr/bin", True),
        (["/usr/bin/nvcc"], "CUDA_HOME=/opt/cuda", False),
        (["/opt/cuda/bin/nvcc"], "CUDA_PATH=/opt/cuda", True),
        (["/x/nvcc"], "FLASHINFER_NVCC=/x/nvcc", True),
        ([], "PATH=/usr/bin", False),
    ],
)
def test_flashinfer_has_an_nvcc(files: list[str], env: str, good: bool) -> None:
    nvcc = found(CPP_EXT, *files, env=(env,))["nvcc for FlashInfer"]
    assert nvcc.passed is good
    assert nvcc.found == files[0] if good else nvcc.found.startswith("none of ")


@pytest.mark.parametrize(
    ("tool", "text", "arch", "env", "good"),
    [
        (BLACKWELL, "knobs.nvidia.ptxas_blackwell if", "120", "A=", True),
        (PTXAS, "knobs.nvidia.ptxas_blackwell if", "120", "A=", False),
        (PTXAS, "knobs.nvidia.ptxas_blackwell if", "90", "A=", True),
        (PTXAS, "knobs.nvidia.ptxas", "120", "A=", True),
        ("/usr/bin/ptxas", "knobs.nvidia.ptxas", "120", "TRITON_PTXAS_PATH=/usr/bin/ptxas", True),
        ("/b", "ptxas_blackwell", "120", "TRITON_PTXAS_PATH=/b", False),
        ("/b", "ptxas_blackwell", "120", "TRITON_PTXAS_BLACKWELL_PATH=/b", True),
        (PTXAS, "knobs.nvidia.ptxas", "120", "TRITON_PTXAS_PATH=/nowhere", True),
    ],
)
def test_triton_has_a_ptxas(tool: str, text: str, arch: str, env: str, good: bool) -> None:
    compiler = File(f"{TRITON}/compiler.py", "file", text=text)
    ptxas = found(compiler, tool, env=(env,), arch=arch)["ptxas for Triton"]
    assert ptxas.passed is good
