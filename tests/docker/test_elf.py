"""The fat binary reader against NVIDIA's own cuobjdump, on what the base's nvcc makes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from simulator import elf
from support.cuda_tools import compile_in

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

SOURCE = """
__global__ void add(float *a, const float *b) { a[threadIdx.x] += b[threadIdx.x]; }
__global__ void scale(float *a, float f) { a[threadIdx.x] *= f; }
int main() { add<<<1, 1>>>(nullptr, nullptr); scale<<<1, 1>>>(nullptr, 2); }
"""
FLAGS = {
    "120": ["-gencode=arch=compute_120,code=sm_120"],
    "120a": ["-gencode=arch=compute_120a,code=sm_120a"],
    "120f": ["-gencode=arch=compute_120f,code=sm_120f"],
    "ptx": ["-gencode=arch=compute_120,code=compute_120"],
    "both": ["-gencode=arch=compute_120a,code=[sm_120a,compute_120a]"],
    "several": [
        *("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90a,code=sm_90a"),
        *("-gencode=arch=compute_120,code=[sm_120,compute_120]",),
    ],
    "relocatable": ["-gencode=arch=compute_120,code=[sm_120,compute_120]", "-rdc=true"],
}


@pytest.fixture(scope="module")
def binaries(devel: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One executable for each set of flags, made in the devel stage without network."""
    folder = tmp_path_factory.mktemp("binaries")
    (folder / "a.cu").write_text(SOURCE)
    calls = [f"nvcc {' '.join(flags)} -o {name} a.cu" for name, flags in FLAGS.items()]
    return compile_in(devel, folder, *calls)


def listed(cuobjdump: Path, kind: str, file: Path) -> list[str]:
    done = subprocess.run(
        [cuobjdump, "-all", f"--list-{kind}", file], capture_output=True, text=True, check=False
    )
    return re.findall(r"\.(sm_\d+[af]?)\.", done.stdout)


@pytest.mark.parametrize("name", FLAGS)
def test_the_reader_agrees_with_cuobjdump(binaries: Path, cuobjdump: Path, name: str) -> None:
    with (binaries / name).open("rb") as stream:
        found = elf.read(stream)
    assert found is not None
    cubins = [code.name for code in found.code if code.kind == "elf"]
    ptx = [code.name.replace("compute", "sm") for code in found.code if code.kind == "ptx"]
    assert cubins or ptx
    # cuobjdump calls a 120f cubin plain sm_120.
    assert [cubin.rstrip("f") for cubin in cubins] == [
        cubin.rstrip("f") for cubin in listed(cuobjdump, "elf", binaries / name)
    ]
    assert ptx == listed(cuobjdump, "ptx", binaries / name)
    expected = {"120": "sm_120", "120a": "sm_120a", "120f": "sm_120f"}
    if name in expected:
        assert set(cubins) == {expected[name]}
