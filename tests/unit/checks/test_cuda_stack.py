"""Torch, CUDA's runtimes, extensions and compilers of an image belong together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.checks.cuda import check
from builder.checks.verdict import Check
from builder.image.contents import Contents, File, name_hash
from simulator.elf import ElfFile
from simulator.ledger import Body, FatBinary
from simulator.selection import Code
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
    parsed = replace(PARSED, needed=("libc10.so",))
    names, needs = frozenset(map(name_hash, defined)), tuple(sorted(undefined))
    return File(path, "file", elf=parsed, defines=names, needs=needs)


def test_an_extension_for_another_torch_is_found() -> None:
    torch = library(f"{SITE}/torch/lib/libc10.so", {"_ZN3c104warnEv"}, set())
    fits = library(f"{SITE}/vllm/_C.so", set(), {"_ZN3c104warnEv", "PyList_New"})
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


def program(path: str, release: str = "", **other: object) -> File:
    found = File(path, "file", size=9, mode=0o755, elf=PARSED, release=release)
    return replace(found, **other)  # type: ignore[arg-type]


def toolkit(home: str, release: str = "13.0", **changed: File | None) -> list[File]:
    """nvcc and what it compiles with; a part is changed, or is missing where it is None."""
    tools = ["bin/nvcc", "bin/ptxas", "bin/cudafe++", "bin/fatbinary", "bin/nvlink"]
    parts = [program(f"{home}/{path}", release) for path in (*tools, "nvvm/bin/cicc")]
    headers = ["cuda_runtime.h", "crt/host_config.h", "cuda_runtime_api.h"]
    others = ["nvvm/libdevice/libdevice.10.bc", *(f"include/{each}" for each in headers)]
    parts += [File(f"{home}/{path}", "file", size=9) for path in others]
    named = {each.path.rpartition("/")[2].split(".")[0]: each for each in parts} | changed
    return [each for each in named.values() if each is not None]


@pytest.mark.parametrize(
    ("home", "env", "good"),
    [
        ("/usr", "PATH=/opt/engine/bin:/usr/bin", True),
        ("/usr/local/cuda", "PATH=/usr/bin", True),
        ("/usr", "CUDA_HOME=/opt/cuda", False),
        ("/opt/cuda", "CUDA_PATH=/opt/cuda", True),
        ("/x", "FLASHINFER_NVCC=/x/bin/nvcc", True),
        ("", "PATH=/usr/bin", False),
    ],
)
def test_flashinfer_has_an_nvcc(home: str, env: str, good: bool) -> None:
    checks = found(CPP_EXT, *(toolkit(home) if home else []), env=(env,))
    nvcc = checks["nvcc for FlashInfer"]
    assert nvcc.passed is good
    assert nvcc.found == f"{home}/bin/nvcc" if good else nvcc.found.startswith("none of ")
    assert not good or checks["the toolkit of nvcc"].passed


HOME = "/usr/local/cuda"
NVCC = f"{HOME}/bin/nvcc"


@pytest.mark.parametrize(
    ("nvcc", "words"),
    [
        (File(NVCC, "file", mode=0o644), "is empty"),
        (File(NVCC, "directory"), "is no file: it is a directory"),
        (program(NVCC, mode=0o644), "cannot be executed by the image's user (mode 0644)"),
        (program(NVCC, elf=None, text="not a program"), "neither an ELF file nor a script"),
        (program(NVCC, elf=None, malformed="cut off"), "is damaged: cut off"),
        (File(NVCC, "link", target="../gone"), "none of "),
    ],
)
def test_an_nvcc_that_is_no_program_is_found(nvcc: File, words: str) -> None:
    check_of = found(CPP_EXT, *toolkit(HOME, nvcc=nvcc))["nvcc for FlashInfer"]
    assert not check_of.passed
    assert words in check_of.found


def test_which_goes_on_to_the_next_program() -> None:
    first = File("/opt/engine/bin/nvcc", "directory")
    checks = found(CPP_EXT, first, *toolkit("/usr"))
    assert checks["nvcc for FlashInfer"].found == "/usr/bin/nvcc"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cicc": None}, "nvvm/bin/cicc does not exist"),
        ({"ptxas": File(f"{HOME}/bin/ptxas", "directory")}, "ptxas is no file"),
        ({"cudafe++": program(f"{HOME}/bin/cudafe++", mode=0o644)}, "cudafe++ cannot be executed"),
        ({"nvlink": None}, "nvlink does not exist"),
        ({"host_config": None}, "host_config.h does not exist"),
        ({"libdevice": None}, "libdevice.10.bc does not exist"),
        ({"ptxas": program(f"{HOME}/bin/ptxas", "12.8")}, "different versions of CUDA: nvcc 13.0"),
        (
            {
                "cuda_runtime_api": File(
                    f"{HOME}/include/cuda_runtime_api.h", "file", release="13.5"
                )
            },
            "cuda_runtime_api.h 13.5",
        ),
        (
            {
                "version": File(
                    f"{HOME}/version.json",
                    "file",
                    text='{"cuda_nvcc" : {"name" : "x", "version" : "12.9.1"}}',
                )
            },
            "version.json (cuda_nvcc) 12.9",
        ),
    ],
)
def test_a_toolkit_whose_parts_do_not_fit_is_found(
    changed: dict[str, File | None], words: str
) -> None:
    check_of = found(CPP_EXT, *toolkit(HOME, **changed))["the toolkit of nvcc"]
    assert not check_of.passed
    assert words in check_of.found


OLD_RULE = 'raise RuntimeError("SM 12.x requires CUDA >= 12.9")'  # FlashInfer 0.6.8
NEW_RULE = """raise RuntimeError("SM 120 requires CUDA >= 12.8")
raise RuntimeError("SM 12.1+ requires CUDA >= 12.9")"""  # 0.7.2


@pytest.mark.parametrize(
    ("release", "rule", "arch", "good"),
    [
        ("13.0", OLD_RULE, "120", True),
        ("12.9", OLD_RULE, "120", True),
        ("12.8", OLD_RULE, "120", False),
        ("12.8", NEW_RULE, "120", True),
        ("12.8", NEW_RULE, "121", False),
        ("12.9", NEW_RULE, "121", True),
        ("12.6", NEW_RULE, "120", False),
        ("12.8", "", "120", False),  # an unknown FlashInfer
        ("12.6", OLD_RULE, "90", True),
        ("", NEW_RULE, "120", False),  # its version is not known
    ],
)
def test_nvcc_is_new_enough_for_the_card(release: str, rule: str, arch: str, good: bool) -> None:
    context = File(f"{SITE}/flashinfer/compilation_context.py", "file", text=rule)
    checks = found(CPP_EXT, context, *toolkit(HOME, release), arch=arch)
    assert checks["nvcc for FlashInfer"].passed
    assert checks["the toolkit of nvcc"].passed is good


def test_a_script_is_an_nvcc_whose_version_another_file_states() -> None:
    script = program(NVCC, elf=None, text='#!/bin/sh\nexec /opt/x/nvcc "$@"\n')
    stated = File(f"{HOME}/version.json", "file", text='{"cuda_nvcc": {"version": "13.0.88"}}')
    for more, good in (([], False), ([stated], True)):
        checks = found(CPP_EXT, script, *more)
        assert checks["nvcc for FlashInfer"].passed
        assert checks["the toolkit of nvcc"].passed is good


def test_an_nvcc_out_of_a_wheel_has_a_version_by_its_metadata() -> None:
    home = f"{SITE}/nvidia/cu13"
    target = "lib/python3.13/site-packages/nvidia/cu13"
    link = File("/opt/engine/cuda", "link", target=target)
    for version, good in (("13.0.88", True), ("13.5.37", False)):
        metadata = f"{SITE}/nvidia_cuda_nvcc-{version}.dist-info/METADATA"
        checks = found(CPP_EXT, link, metadata, *toolkit(home), env=("CUDA_HOME=/opt/engine/cuda",))
        assert checks["the toolkit of nvcc"].passed is good


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        (["flashinfer_python-0.6.14", "flashinfer_cubin-0.6.14"], ""),
        (["flashinfer_python-0.6.14", "flashinfer_jit_cache-0.6.14+cu130"], ""),
        (["flashinfer_python-0.6.8.post1", "flashinfer_cubin-0.6.8.post1"], ""),
        (["flashinfer_python-0.6.14"], ""),
        (["flashinfer_python-0.6.14+git1", "flashinfer_cubin-0.6.14"], ""),
        (["flashinfer_python-0.6.14", "flashinfer_jit_cache-0.6.14+cu130.sm120"], ""),
        (["flashinfer_python-0.6.14", "flashinfer_jit_cache-0.6.14+cu128.sm120"], "torch for CUDA"),
        (["flashinfer_python-0.6.14", "flashinfer_cubin-0.6.13"], "cubin 0.6.13 beside"),
        (["flashinfer_python-0.6.8.post1", "flashinfer_cubin-0.6.8"], "cubin 0.6.8 beside"),
        (["flashinfer_python-0.6.14", "flashinfer_jit_cache-0.6.14+cu128"], "torch for CUDA 13.0"),
        (["flashinfer_python-0.6.14", "flashinfer_jit_cache-0.6.13+cu130"], "beside flashinfer_py"),
        (["flashinfer_python-0.7.2", "flashinfer_jit_cache_cu129-0.7.2+cu129"], "torch for CUDA"),
        (["flashinfer_python-0.6.14", "flashinfer_python-0.6.13"], "another file of"),
    ],
)
def test_the_packages_of_flashinfer_have_one_version(packages: list[str], words: str) -> None:
    torch = File(f"{SITE}/torch/version.py", "file", text="__version__ = '2.11.0'\ncuda = '13.0'")
    check_of = found(torch, *(f"{SITE}/{each}.dist-info/METADATA" for each in packages))[
        "FlashInfer's packages"
    ]
    assert check_of.passed is not bool(words)
    assert words in check_of.found


def test_a_package_of_flashinfer_that_states_another_version_than_its_metadata_is_found() -> None:
    meta = File(f"{SITE}/flashinfer/_build_meta.py", "file", text='__version__ = "0.6.13"\n')
    metadata = f"{SITE}/flashinfer_python-0.6.14.dist-info/METADATA"
    assert "another file of" in found(meta, metadata)["FlashInfer's packages"].found


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
    ptxas = found(compiler, program(tool), env=(env,), arch=arch)["ptxas for Triton"]
    assert ptxas.passed is good


@pytest.mark.parametrize(
    ("tool", "arch", "words"),
    [
        (File(BLACKWELL, "directory"), "120", "is no file"),
        (program(BLACKWELL, mode=0o644), "120", "cannot be executed"),
        (program(BLACKWELL, "12.8"), "121", "needs 12.9 or newer"),
        (program(BLACKWELL, "12.6"), "120", "needs 12.8 or newer"),
        (program(BLACKWELL, "12.9"), "121", ""),
        (program(BLACKWELL, "12.8"), "120", ""),
    ],
)
def test_a_ptxas_that_cannot_compile_for_the_card_is_found(
    tool: File, arch: str, words: str
) -> None:
    compiler = File(f"{TRITON}/compiler.py", "file", text="knobs.nvidia.ptxas_blackwell if")
    ptxas = found(compiler, tool, arch=arch)["ptxas for Triton"]
    assert ptxas.passed is not bool(words)
    assert words in ptxas.found


# The PTX that the driver compiles


def with_ptx(version: str, target: str = "sm_80") -> File:
    body = Body(Code("ptx", 80), 1, 0, 0, version=version, target=target)
    code = FatBinary(0, "compute_80", bodies=(body,))
    return File("/opt/engine/lib/libx.so", "file", elf=PARSED, fat_binaries=(code,))


@pytest.mark.parametrize(
    ("file", "driver", "words"),
    [
        (with_ptx("9.0"), "580", ""),
        (with_ptx("8.8"), "580.65.06", ""),
        (with_ptx("7.8"), "570", ""),
        (with_ptx("9.2"), "580", "PTX 9.2 is of CUDA 13.2, and driver 580 is of CUDA 13.0"),
        (with_ptx("9.2"), "595.45.04", ""),
        (with_ptx("9.0"), "575", "driver 575 is of CUDA 12.9"),
        (with_ptx("8.6"), "560", "PTX 8.6 is of CUDA 12.7"),
        (with_ptx("9.9"), "999", "belongs to no known CUDA"),
        (with_ptx("9.4"), "640", "it is not known whether driver 640"),
        (with_ptx(""), "580", "belongs to no known CUDA"),
        (with_ptx("9.0", "sm_121"), "580", "its target is sm_121"),
        (with_ptx("9.0", "sm_90a"), "580", "its target is sm_90a"),
        (File("/x/k.ptx", "file", ptx=("9.2", "sm_120a")), "580", "PTX 9.2 is of CUDA 13.2"),
        (File("/x/k.ptx", "file", ptx=("9.0", "sm_120a")), "580", ""),
        (File("/x/k.ptx", "file", ptx=("9.2", "sm_100a")), "580", ""),  # for another card
    ],
)
def test_ptx_newer_than_the_recipes_driver_is_found(file: File, driver: str, words: str) -> None:
    recipe = of_arch("120")
    recipe = recipe.model_copy(update={"cuda": recipe.cuda.model_copy(update={"driver": driver})})
    contents = Contents({file.path: file}, {"config": {}}, (), 0)
    checks = {each.subject: each for each in check(context_of(contents, recipe))}
    assert checks["the driver compiles the PTX"].passed is not bool(words)
    assert words in checks["the driver compiles the PTX"].found
