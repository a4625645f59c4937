"""Libraries that nvcc made, and a library of a real wheel, before and after the diet."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.image.device_code import compare_code
from builder.presets import cards
from builder.recipes.locks import PinnedFile
from builder.sources import pypi
from simulator import ledger
from simulator.selection import Capability
from support.commands import Builder
from support.cuda_tools import compile_in
from support.environment import REPOSITORY, SHARED_CACHE
from support.simulators import Case, code_of, run_cases

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

DIET = REPOSITORY / "dockerfiles" / "scripts" / "diet.py"
CARD = Capability(12, 0)
KERNEL = """
__global__ void NAME_kernel(float *p) { p[threadIdx.x] *= 3; }
extern "C" const char *NAME(float *p) {
  NAME_kernel<<<1, 32>>>(p);
  return cudaGetErrorName(cudaGetLastError());
}
"""
PROGRAM = """
#include <cstdio>
extern "C" { const char *native(float *); const char *late(float *); const char *old(float *); }
int main() {
  float *p;
  cudaMalloc(&p, 4096);
  printf("native %s\\n", native(p));
  printf("late %s\\n", late(p));
  printf("old %s\\n", old(p));
}
"""
CODES = {
    "native": [(80, "sm_80"), (90, "sm_90"), (120, "sm_120"), (120, "compute_120")],
    "late": [(80, "sm_80"), (80, "compute_80")],
    "old": [(90, "sm_90")],
}
"""The code of each library: as CUDA's libraries, FlashAttention 2 and FlashAttention 3 have it."""


def on_a_diet(site: Path, name: str, *dead: str) -> str:
    """Make the files of a folder a package and put it on the diet; what that prints."""
    record = site / f"{name}-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    paths = [str(file.relative_to(site)) for file in sorted(site.rglob("*.so"))]
    record.write_text("".join(f"{path},sha256=0,0\n" for path in paths))
    command = [sys.executable, DIET, site, "12.0", "--", *dead]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def programs(images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    calls = []
    for name, codes in CODES.items():
        (folder / f"{name}.cu").write_text(KERNEL.replace("NAME", name))
        options = " ".join(f"-gencode=arch=compute_{arch},code={code}" for arch, code in codes)
        calls.append(
            f"nvcc {options} -cudart=shared -shared -Xcompiler -fPIC -o lib{name}.so {name}.cu"
        )
    (folder / "main.cu").write_text(PROGRAM)
    libraries = " ".join(f"-l{name}" for name in CODES)
    calls.append(f"nvcc -cudart=shared -o main main.cu -L. {libraries} -Xlinker -rpath='$ORIGIN'")
    folder.chmod(0o755)  # the program runs as another user
    return compile_in(images["devel"], folder, *calls)


def ran(image: str, libraries: Path, programs: Path, folder: Path) -> Case:
    """The program on a simulated card."""
    card = cards.load(REPOSITORY, "5090")
    found = {f"/work/lib{name}.so": programs / f"lib{name}.so" for name in CODES}
    files = {"cards": cards.text([card]), "code": code_of(found, card)}
    folder.mkdir()
    return run_cases(image, libraries, programs, files, [("main", "x")], folder)["main", "x"]


def test_the_card_launches_the_same_kernels(
    images: dict[str, str],
    programs: Path,
    simulator_libraries: Path,
    cuobjdump: Path,
    tmp_path: Path,
) -> None:
    slim = tmp_path / "slim"
    shutil.copytree(programs, slim)
    printed = on_a_diet(slim, "x", "libold.so")
    emptied = [line.rpartition(" ")[2] for line in printed.splitlines()[:-1]]
    assert emptied == ["liblate.so", "libnative.so", "libold.so"]
    before = ran(images["devel"], simulator_libraries, programs, tmp_path / "before")
    after = ran(images["devel"], simulator_libraries, slim, tmp_path / "after")
    assert before.lines == after.lines
    assert before.told("native") == "cudaSuccess"
    assert before.told("old") == "cudaErrorNoKernelImageForDevice"
    assert before.report["launches"] == after.report["launches"] != []
    assert before.report["violations"] == after.report["violations"] != []
    listed = [
        subprocess.run([cuobjdump, "--list-elf", file], capture_output=True, text=True, check=True)
        for file in (programs / "libnative.so", slim / "libnative.so", slim / "libold.so")
    ]
    codes = [set(re.findall(r"sm_\d+", each.stdout)) for each in listed]
    assert codes == [{"sm_80", "sm_90", "sm_120"}, {"sm_120"}, {"sm_90"}]


def test_compare_shows_no_other_difference(
    builder: Builder, programs: Path, tmp_path: Path
) -> None:
    slim = tmp_path / "slim"
    shutil.copytree(programs, slim)
    on_a_diet(slim, "x")
    shutil.rmtree(slim / "x-1.0.dist-info")
    done = builder("compare", programs, slim, "--json")
    assert done.returncode == 17, done.stderr
    changed: dict[str, Any] = {each["path"]: each for each in json.loads(done.stdout)["files"]}
    assert sorted(changed) == ["/liblate.so", "/libnative.so"]
    for each in changed.values():
        assert each["aspects"] in (["content"], ["content", "time"])
        assert each["before"]["size"] == each["after"]["size"]
        assert not each["unread"]
        assert [section["name"] for section in each["elf"]["sections"]] == [".nv_fatbin"]
        assert not each["elf"]["symbols_added"] + each["elf"]["symbols_removed"]
        for total in each["code"]["totals"]:
            assert total["equal"] == total["after"], "what is left is the same"
    left = {
        total["code"]: (total["before"], total["after"])
        for total in changed["/libnative.so"]["code"]["totals"]
    }
    assert left["sm_120"][0] == left["sm_120"][1] > 0
    assert [left[code][1] for code in ("sm_80", "sm_90", "compute_120")] == [0, 0, 0]


@pytest.mark.network
def test_a_library_of_a_real_wheel(tmp_path: Path) -> None:
    """vllm 0.20.2 has sm_120, compute_89 where that is the only path, and code for other cards."""
    sha256 = "22a7dd06eb03371298e13d6100f3dedbf307352342aaf08e87c929c60aae9b4d"
    (wheel,) = pypi.fetch([PinnedFile("vllm", "0.20.2", sha256)], SHARED_CACHE, print)
    with zipfile.ZipFile(wheel) as found:
        old = Path(found.extract("vllm/_C_stable_libtorch.abi3.so", tmp_path / "before"))
    new = tmp_path / "after" / "vllm" / old.name
    new.parent.mkdir(parents=True)
    shutil.copy(old, new)
    assert "2.6 of 5.3 MB of device code removed in all" in on_a_diet(tmp_path / "after", "vllm")
    with old.open("rb") as before, new.open("rb") as after:
        old_code, new_code = (
            [replace(each, offered=()) for each in ledger.read(file, CARD)]
            for file in (before, after)
        )
        assert old_code == new_code, "the card takes the same code"
        assert sum(len(each.kernels) for each in new_code) == 301
        difference = compare_code(before, after)
    assert difference is not None
    left = {each.code: each.after for each in difference.totals if each.after}
    # Modules for 9.0 and 10.0 alone stay.
    assert left == {"compute_89": 1, "sm_100f": 7, "sm_120": 7, "sm_120f": 9, "sm_90a": 9}
    assert all(each.equal == each.after for each in difference.totals)
    assert {each.state for each in difference.functions} <= {"removed"}
