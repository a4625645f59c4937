"""Works that a card may do at once: launches that overlap, streams, copies, the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from builder.checks import simulated
from builder.presets import cards
from support.environment import REPOSITORY, SHARED_CACHE
from support.simulators import Case, run_cases
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

SOURCE = REPOSITORY / "tests/data/simulator/overlaps.cu"
COMPILE = (
    "nvcc -std=c++20 -lineinfo -cudart=shared "
    "'-gencode=arch=compute_120,code=[sm_120,compute_120]' "
    "-o overlaps /source/overlaps.cu -L/usr/local/cuda/lib/stubs -lcuda"
)
NAMES = re.findall(r'^    {"(\w+)", \[\]', SOURCE.read_text(), re.M)
CORRECT = [name for name in NAMES if name.startswith("no_")]
UNORDERED = "and nothing orders the two: no event, no wait, no common stream"
FAULTY = {
    "forgets": "accesses global memory on a path without griddepcontrol.wait",
    "forgets_by_driver": "accesses global memory on a path without griddepcontrol.wait",
    "weights": "the kernel _Z5twicePKfPf in stream 2 writes, before griddepcontrol.wait",
    "weights_of_the_one_before": "_Z5twicePKfPf in stream 2 writes, before griddepcontrol.wait",
    "captured_weights": "_Z5twicePKfPf of a graph in stream 2 writes, before griddepcontrol.wait",
    "streams": f"reads memory that the kernel _Z7forgetsPKfPf in stream 2 writes, {UNORDERED}",
    "event_before": f"the kernel _Z7forgetsPKfPf in stream 2 writes, {UNORDERED}",
    "overwrites": f"writes memory that the kernel _Z7forgetsPKfPf in stream 2 reads, {UNORDERED}",
    "two_readers": f"the kernel _Z7forgetsPKfPf in stream 2 reads, {UNORDERED}",
    "default_stream": f"the kernel _Z7forgetsPKfPf in the default stream writes, {UNORDERED}",
    "per_thread": f"reads memory that the kernel _Z7forgetsPKfPf in stream 4 writes, {UNORDERED}",
    "copies": f"reads memory that a copy in stream 2 writes, {UNORDERED}",
    "fills": f"reads memory that a fill in the default stream writes, {UNORDERED}",
    "reads_early": "race: a copy in the default stream reads memory that the kernel",
    "frees_early": "race: a release in stream order in stream 3 frees memory that the kernel",
    "host_frees_early": "race: the host frees memory that the kernel",
    "allocates": "writes memory that an allocation in stream order in stream 2 writes",
    "graph": f"the kernel _Z7forgetsPKfPf of a graph in stream 2 reads, {UNORDERED}",
    "behind_a_graph": f"the kernel _Z7forgetsPKfPf of a graph in stream 2 writes, {UNORDERED}",
}


@pytest.fixture(scope="module")
def ran(
    hello: dict[str, Any], devel: str, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[tuple[str, str], Case]:
    folder = tmp_path_factory.mktemp("overlaps")
    programs, out = folder / "programs", folder / "out"
    for each in (programs, out):
        each.mkdir()
        each.chmod(0o755)
    mounts = [f"--volume={programs}:/work", f"--volume={SOURCE.parent}:/source:ro"]
    call = ["run", "--rm", "--network=none", *mounts, "--workdir=/work", devel]
    docker(*call, "sh", "-euc", COMPILE)
    card = cards.load(REPOSITORY, "5090")
    compute = cards.Compute(ptx=simulated.PTX, races=True)
    files = {"cards": cards.text([card], compute=compute), "code": ""}
    libraries = simulated.libraries(SHARED_CACHE, devel, print, computes=True)
    image = f"builder-base/cuda-13.0:runtime-{hello['plan']['base']['key'][:12]}"
    runs = [("overlaps", name) for name in NAMES]
    return run_cases(image, libraries, programs, files, runs, out)


def test_every_case_is_judged() -> None:
    assert sorted([*CORRECT, *FAULTY]) == sorted(NAMES)


@pytest.mark.parametrize("name", CORRECT)
def test_works_that_are_ordered_are_no_finding(
    ran: Mapping[tuple[str, str], Case], name: str
) -> None:
    case = ran["overlaps", name]
    assert case.violations() == []
    assert case.told("end") == "cudaSuccess"


@pytest.mark.parametrize("name", FAULTY)
def test_works_that_may_run_at_once_are_named(
    ran: Mapping[tuple[str, str], Case], name: str
) -> None:
    case = ran["overlaps", name]
    [(_, why)] = case.violations()
    assert why.startswith("race: ")
    assert FAULTY[name] in why
    assert case.report["violations"][0]["kernel"].startswith("_Z")


def test_the_line_of_the_access_is_named(ran: Mapping[tuple[str, str], Case]) -> None:
    text = SOURCE.read_text().splitlines()
    [(_, why)] = ran["overlaps", "forgets"].violations()
    at = next(number for number, each in enumerate(text, 1) if "forgets(" in each)
    assert f"overlaps.cu:{at}" in why, why


def test_what_is_ordered_is_computed_right(ran: Mapping[tuple[str, str], Case]) -> None:
    assert ran["overlaps", "no_forgets"].number("value") == 7  # ((1 * 2 + 1) * 2) + 1
