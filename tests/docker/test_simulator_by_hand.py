"""`simulator/run`: a program on simulated cards, in a checkout without builder's environment."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from builder.checks import simulated
from support.environment import REPOSITORY, SHARED_CACHE

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

COMPILE = """
nvcc -cudart=shared --compress-mode=none -gencode=arch=compute_120,code=sm_120 -o /work/card \
    /repository/tests/data/simulator/card.cu -L/usr/local/cuda/lib/stubs -lcuda
nvcc -cudart=shared --compress-mode=none '-gencode=arch=compute_120,code=[sm_120,compute_120]' \
    -DNUMBER=2 -o /work/stored /repository/tests/data/simulator/stored.cu
"""


class Checkout:
    """A read-only checkout in the image to compile in, whose Python has no packages."""

    def __init__(self, image: str, libraries: Path, work: Path) -> None:
        self.work = work
        self.docker = ["docker", "run", "--rm", "--network=none", f"--volume={work}:/work"]
        self.docker += [f"--volume={REPOSITORY}:/repository:ro", f"--volume={libraries}:/built:ro"]
        self.docker += [image, "sh", "-euc"]

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.docker, script], capture_output=True, text=True, check=False)

    def run(self, arguments: str) -> subprocess.CompletedProcess[str]:
        return self.shell(f"/repository/simulator/run --libraries /built {arguments}")


@pytest.fixture(scope="module")
def compiled(devel: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    done = Checkout(devel, folder, folder).shell(COMPILE)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def checkout(devel: str, compiled: Path, tmp_path: Path) -> Checkout:
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
    libraries = simulated.libraries(SHARED_CACHE, devel, print, computes=True)
    return Checkout(devel, libraries, tmp_path)


def test_a_program_runs_on_two_cards_and_its_report_is_shown(checkout: Checkout) -> None:
    done = checkout.run("--card 5090 --cards 2 --json /work/report -- /work/card block")
    assert done.returncode == 0, done.stderr
    assert "1024 threads cudaSuccess" in done.stdout
    assert "simulated: /work/card block" in done.stderr
    assert "1 launches of 1 kernels" in done.stderr
    assert "sm_120 _Z5plainPf" in done.stderr
    assert "refused: _Z5plainPf: cudaErrorInvalidValue: a block of 2048" in done.stderr
    [report] = json.loads((checkout.work / "report").read_text())
    assert [card["name"] for card in report["cards"]] == ["NVIDIA GeForce RTX 5090"] * 2


def test_a_kernel_is_computed_from_the_programs_own_ptx(checkout: Checkout) -> None:
    counted = checkout.run("--card 5090 -- /work/stored")
    assert counted.stdout == "launch cudaSuccess\nsum 0\n"
    computed = checkout.run("--card 5090 --compute --races -- /work/stored")
    assert computed.stdout == "launch cudaSuccess\nsum 4032\n"  # 2 * 63 * 64 / 2
    assert "1 launches of 1 kernels, 1 of them computed" in computed.stderr


def test_a_refusal_that_is_of_no_kernel_is_shown(checkout: Checkout) -> None:
    done = checkout.run("--card 5090 -- /work/card graph")
    assert "refused: cudaErrorStreamCaptureUnsupported: cudaMalloc is not allowed" in done.stderr


def test_the_exit_status_is_the_programs(checkout: Checkout) -> None:
    assert checkout.run("--card 5090 -- sh -c 'exit 3'").returncode == 3
    done = checkout.run("--card 5090 -- sh -c 'kill -9 $$'")
    assert done.returncode == 137
    assert "the program used no card" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--card 4711 -- true", "no card is named 4711; the cards: "),
        ("--card 5090 -- no-such-program", "no-such-program: there is no such program"),
        ("--libraries /work --card 5090 -- true", "no libraries in /work: `make -C "),
    ],
)
def test_what_is_missing_is_named(checkout: Checkout, arguments: str, error: str) -> None:
    done = checkout.run(arguments)
    assert done.returncode == 1
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_the_libraries_are_compiled_beside_the_sources(checkout: Checkout) -> None:
    make = "make --dry-run -C /repository/simulator card"
    planned = checkout.shell(make)
    assert planned.returncode == 0, planned.stderr
    assert "-o /repository/simulator/out/card/libcudart.so.13" in planned.stdout
    done = checkout.shell(f"{make} CUDA=/nowhere")
    assert done.returncode != 0
    assert "no cuda_runtime_api.h with a CUDART_VERSION in /nowhere/include" in done.stderr
