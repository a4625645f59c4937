"""A large library by others: llama.cpp's CUDA backend of an npm package, for several GPUs."""

from __future__ import annotations

import json
import resource
import subprocess
import tarfile
from pathlib import Path

import pytest

from simulator import ledger
from simulator.selection import Capability

PACKAGE = "@node-llama-cpp/linux-x64-cuda@3.22.1"
LIBRARY = "package/bins/linux-x64-cuda/libggml-cuda.so"


@pytest.mark.network
def test_a_prebuilt_backend_is_read_in_full(tmp_path: Path) -> None:
    done = subprocess.run(
        ["npm", "pack", "--json", PACKAGE], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    (packed,) = json.loads(done.stdout)
    with tarfile.open(tmp_path / packed["filename"]) as package:
        package.extract(LIBRARY, tmp_path, filter="data")
    file = tmp_path / LIBRARY
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with file.open("rb") as stream:
        found = list(ledger.read(stream, Capability(12, 0)))
        older = list(ledger.read(stream, Capability(9, 0)))
    # KiB: the library has 159 MB, and 94 MB of machine code for this card alone.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    kernels = [kernel for binary in found for kernel in binary.kernels]
    assert {binary.code for binary in found} == {"sm_120a"}
    assert (len(found), len(kernels)) == (143, 6731)
    assert all(kernel.registers > 0 and kernel.size > 0 for kernel in kernels)
    assert sum(bool(kernel.spills) for kernel in kernels) == 94
    assert {binary.code for binary in older} == {"compute_90"}
    names = {kernel.name for kernel in kernels}
    assert {kernel.name for binary in older for kernel in binary.kernels} <= names | {""}
