"""Small CUDA programs on simulated cards: what every call returns, and what the report has.

The program is compiled once for each kind of device code; one container without a GPU runs all
cases, each with a report of its own.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.checks import simulated
from builder.presets import cards
from support.environment import REPOSITORY, SHARED_CACHE
from support.simulators import Case, code_of, run_cases
from support.smoke_tests import docker

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

PROGRAM = REPOSITORY / "tests/data/simulator/card.cu"
KINDS = {
    "card": "-gencode=arch=compute_120,code=sm_120",
    "sm_90": "-gencode=arch=compute_90,code=sm_90",
    "ptx": "-gencode=arch=compute_90,code=compute_90",
}
CASES = [
    *("full", "arithmetic", "leak", "block", "shared", "registers", "clusters", "cooperative"),
    *("unsupported", "aborted", "graph", "two_cards", "contents", "pools", "forked"),
    *("loading", "reset", "stale", "managed", "written", "results"),
]
# What a program with the static runtime does like others; it has no managed variables here.
SAME = ["arithmetic", "leak", "block", "shared", "cooperative", "pools", "forked", "written", "one"]
RUNS = [
    *(("card", case) for case in CASES),
    *((kind, "one") for kind in KINDS),
    *(("static", case) for case in (*SAME, "full", "graph", "two_cards")),
    ("before", "block"),
]
OK = "cudaSuccess"


@pytest.fixture(scope="module")
def libraries(devel: str) -> Path:
    return simulated.libraries(SHARED_CACHE, devel, lambda _: None)


@pytest.fixture(scope="module")
def programs(devel: str, libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    folder.chmod(0o755)  # the container's user runs them
    driver = "-L/usr/local/cuda/lib/stubs -lcuda"
    calls = [
        f"nvcc -cudart=shared {flag} -o {name} /card.cu {driver}" for name, flag in KINDS.items()
    ]
    calls.append(f"nvcc -cudart=static -DSTATIC {KINDS['card']} -o static /card.cu {driver}")
    calls.append("echo '__managed__ int value; __global__ void kernel() {}' > library.cu")
    calls.append("nvcc -cudart=shared -shared -Xcompiler -fPIC -o library.so library.cu")
    # A program for CUDA 12 links that release's name of the runtime.
    twelve = "-L/simulator -l:libcudart.so.12"
    calls.append(f"nvcc -cudart=none -DSTATIC {KINDS['card']} -o before /card.cu {driver} {twelve}")
    mounts = [f"--volume={folder}:/work", f"--volume={PROGRAM}:/card.cu:ro"]
    mounts.append(f"--volume={libraries}:/simulator:ro")
    script = "\n".join(calls)
    docker("run", "--rm", "--network=none", *mounts, "--workdir=/work", devel, "sh", "-euc", script)
    return folder


@pytest.fixture(scope="module")
def ran(
    hello: dict[str, Any],
    libraries: Path,
    programs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[tuple[str, str], Case]:
    """All cases, by the program and the case's name."""
    card = cards.load(REPOSITORY, "5090")
    names = (*KINDS, "static", "before")
    code = code_of({f"/work/{name}": programs / name for name in names}, card)
    reached = card.model_copy(update={"peer": True})
    lines = cards.text([reached, reached], vocabulary=1000, tokens=(5, 6, 7))
    image = f"builder-base/cuda-13.0:runtime-{hello['plan']['base']['key'][:12]}"
    files = {"cards": lines, "code": code}
    return run_cases(image, libraries, programs, files, RUNS, tmp_path_factory.mktemp("simulated"))


Ran = Mapping[tuple[str, str], Case]


def test_a_card_is_full_when_all_is_allocated_and_nothing_of_it_is_resident(ran: Ran) -> None:
    case = ran["card", "full"]
    card = case.report["cards"][0]
    gibibytes = case.number("gibibytes")
    assert gibibytes == (card["memory"] - card["context"]) >> 30
    assert gibibytes >= 30
    assert case.told("then") == case.told("last") == "cudaErrorMemoryAllocation"
    assert (case.told("null"), case.told("again")) == ("1", OK)
    assert case.number("peak") < 150 * 1024  # KiB; 64 MiB of them are the program's own
    assert (case.told("freed"), case.told("twice")) == (OK, "cudaErrorInvalidValue")
    [failed] = case.report["failed"]
    assert failed["requested"] == 1 << 30
    assert failed["free"] == card["memory"] - card["context"] - (gibibytes << 30)
    assert card["peak"] == card["context"] + (gibibytes << 30)
    assert card["used"] == card["context"]
    copies = {"count": gibibytes, "bytes": gibibytes << 26, "kept": 0}
    assert case.report["copies"]["to_device"] == copies


def test_sizes_are_rounded_as_the_allocator_does(ran: Ran) -> None:
    case = ran["card", "arithmetic"]
    card = case.report["cards"][0]
    assert case.number("total") == card["memory"]
    assert case.number("free") == card["memory"] - card["context"]
    assert case.number("one byte") == case.number("and 1000 KiB") == 2 << 20
    assert case.number("and 3 MiB") == 6 << 20
    assert case.number("aligned") == case.number("all freed") == 0


def test_what_is_never_freed_stands_by_its_stack(ran: Ran) -> None:
    case = ran["card", "leak"]
    [allocation] = case.report["allocations"]
    assert (allocation["count"], allocation["live"]) == (10, 10 << 20)
    assert allocation["at_peak"] == 10 << 20
    assert allocation["largest"] == 1 << 20
    frames = case.report["stacks"][allocation["stack"]]
    assert frames[0].startswith("/work/card+0x")
    assert not any("/simulator/lib" in frame for frame in frames)


def test_sizes_of_grids_and_blocks_are_checked(ran: Ran) -> None:
    case = ran["card", "block"]
    wrong = ["2048 threads", "2048 by attributes", "65 deep", "no blocks", "65536 rows"]
    # So did an H100 with driver 580.159.04 and runtime 13.0; the runtime 12.9 makes another of it.
    assert [case.told(name) for name in wrong] == ["cudaErrorInvalidValue"] * 5
    assert case.violations()[0][0] == "cudaErrorInvalidValue"
    before = ran["before", "block"]
    assert [before.told(name) for name in wrong] == ["cudaErrorInvalidConfiguration"] * 5
    assert before.violations()[0][0] == "cudaErrorInvalidConfiguration"
    assert case.told("1024 threads") == OK
    first = case.report["violations"][0]
    assert first["why"].startswith("a block of 2048 threads (2048x1x1); the card allows 1024")
    assert (first["kernel"], first["block"]) == ("_Z5plainPf", [2048, 1, 1])
    [launch] = case.report["launches"]
    assert (launch["code"], launch["count"], launch["block"]) == ("sm_120", 1, [1024, 1, 1])


def test_shared_memory_above_48_kib_needs_the_attribute(ran: Ran) -> None:
    case = ran["card", "shared"]
    assert case.told("48 KiB") == case.told("91 KiB") == case.told("99 KiB") == OK
    wrong = ["more", "92 KiB", "too much"]
    assert [case.told(name) for name in wrong] == ["cudaErrorInvalidValue"] * 3
    assert (case.number("static"), case.number("dynamic")) == (8 << 10, 91 << 10)
    assert "40960 are allowed before cudaFuncSetAttribute" in case.violations()[0][1]


def test_registers_and_launch_bounds_limit_a_block(ran: Ran) -> None:
    case = ran["card", "registers"]
    assert case.number("registers") > 128
    assert 256 <= case.number("most") < 512
    assert case.told("256 threads") == case.told("within bounds") == OK
    assert case.told("1024 threads") == "cudaErrorLaunchOutOfResources"
    assert case.told("beyond bounds") == "cudaErrorInvalidValue"
    assert "a block may have 65536" in case.violations()[0][1]


def test_clusters_and_cooperative_grids_are_checked(ran: Ran) -> None:
    case = ran["card", "clusters"]
    assert case.told("2 of 4") == case.told("16 allowed") == OK
    wrong = ["2 of 3", "16 of 16", "32 of 32"]
    assert [case.told(name) for name in wrong] == ["cudaErrorInvalidClusterSize"] * 3
    assert (case.number("most"), case.number("most allowed")) == (8, 16)
    assert case.violations()[2][1] == "a cluster of 32 blocks; 16 are allowed"
    case = ran["card", "cooperative"]
    assert case.number("blocks") == 3  # 1536 threads on a multiprocessor
    assert (case.told("all"), case.told("one more")) == (OK, "cudaErrorCooperativeLaunchTooLarge")


def test_device_code_that_the_card_does_not_take(ran: Ran) -> None:
    case = ran["sm_90", "one"]
    assert case.told("launch") == "cudaErrorNoKernelImageForDevice"
    assert case.violations()[0][1] == "/work/sm_90 has no code for compute capability 12.0"
    assert case.report["launches"] == []
    case = ran["ptx", "one"]
    assert case.told("launch") == OK  # the driver would compile it
    [launch] = case.report["launches"]
    assert launch["code"] == "compute_90"
    assert (case.number("binary"), case.number("PTX")) == (120, 90)
    case = ran["card", "one"]
    assert (case.number("binary"), case.number("PTX")) == (120, 120)


def test_a_program_may_link_the_runtime_statically(ran: Ran) -> None:
    """``libcudart_static.a``, which nvcc links by default, asks the driver for tables."""
    for case in SAME:
        assert ran["static", case].lines == ran["card", case].lines, case
    [launch] = ran["static", "one"].report["launches"]
    assert (launch["kernel"], launch["count"]) == ("_Z5plainPf", 1)
    full, graph = ran["static", "full"], ran["static", "graph"]
    assert full.number("gibibytes") == ran["card", "full"].number("gibibytes")
    assert full.told("then") == "cudaErrorMemoryAllocation"
    assert graph.told("changed") == ran["card", "graph"].told("changed")
    assert sum(found["count"] for found in graph.report["launches"]) == 15
    # Only the card that a program uses has a context, although the runtime asks for all.
    assert [card["peak"] > 0 for card in ran["static", "one"].report["cards"]] == [True, False]
    assert ran["static", "two_cards"].number("received") == 42


def test_a_call_that_is_not_simulated_is_named(ran: Ran) -> None:
    case = ran["card", "unsupported"]
    assert case.lines == [("array", "cudaErrorNotSupported")] * 2
    [call] = case.report["unsupported"]
    assert (call["function"], call["count"]) == ("cudaMallocArray", 2)
    assert case.report["stacks"][call["stack"]][0].startswith("/work/card+0x")
    assert "cudaMallocArray" not in case.report["implemented"]


def test_a_program_that_aborts_leaves_its_report(ran: Ran) -> None:
    case = ran["card", "aborted"]
    assert case.status == 128 + 6
    [failed] = case.report["failed"]
    assert failed["requested"] == 100 << 30
    assert case.report["called"]["cudaMalloc"] == 2
    assert case.report["began"] > case.report["ended"] == 0
    other = ran["card", "one"].report
    assert case.report["began"] < other["began"] < other["ended"]


def test_launches_of_graphs_are_counted(ran: Ran) -> None:
    case = ran["card", "graph"]
    [launch] = case.report["launches"]
    assert launch["count"] == 5 * 3
    assert case.told("nodes") == "4"
    assert [value for name, value in case.lines if name == "captured"] == [
        *(OK, OK, OK, "cudaErrorStreamCaptureUnjoined")
    ]
    assert (case.told("same"), case.told("changed")) == (OK, "cudaErrorGraphExecUpdateFailure")
    unsafe = ["allocated", "waited", "queried", "by the driver"]
    assert [case.told(name) for name in unsafe] == ["cudaErrorStreamCaptureUnsupported"] * 4
    assert [value for name, value in case.lines if name == "ended"] == [
        *["cudaErrorStreamCaptureInvalidated"] * 4
    ]
    assert case.told("not captured") == OK
    assert case.violations()[0][1] == "cudaMalloc is not allowed while a stream is captured"
    assert (case.told("elapsed"), case.told("forward")) == (OK, "1")


def test_two_cards_have_memory_and_streams_of_their_own(ran: Ran) -> None:
    case = ran["card", "two_cards"]
    assert (case.told("cards"), case.told("can"), case.told("enabled")) == ("2", "1", OK)
    assert case.told("twice") == "cudaErrorPeerAccessAlreadyEnabled"
    assert case.told("itself") == "cudaErrorPeerAccessUnsupported"
    assert case.told("third") == "cudaErrorInvalidDevice"
    assert (case.number("taken"), case.told("received"), case.told("on")) == (4 << 20, "42", "1")
    assert case.told("other card's stream") == "cudaErrorInvalidResourceHandle"
    first, second = case.report["cards"]
    assert first["used"] - first["context"] == 2 << 20
    assert second["used"] - second["context"] == 4 << 20


def test_contents_are_kept_below_the_bound_and_defined_above(ran: Ran) -> None:
    case = ran["card", "contents"]
    assert (case.told("kept"), case.told("large")) == ("1", "0")
    assert case.number("set") == 7 * 100 + 3 * 10 + 7
    assert [value for name, value in case.lines if name == "token"] == ["5", "6", "7"]
    assert case.told("outside") == case.told("after") == "cudaErrorInvalidValue"
    assert [why.split(" bytes ")[1] for _, why in case.violations()] == [
        *("leaves its allocation by 1048576 bytes", "to or from an address that is not allocated")
    ]


def test_what_a_launch_may_have_written_is_known_unless_an_engine_samples_on_the_card(
    ran: Ran,
    hello: dict[str, Any],
    libraries: Path,
    programs: Path,
    tmp_path: Path,
) -> None:
    case = ran["card", "written"]
    assert (case.told("before"), case.told("after")) == ("7", "7")
    lines = cards.text([cards.load(REPOSITORY, "5090")], samples=True)
    image = f"builder-base/cuda-13.0:runtime-{hello['plan']['base']['key'][:12]}"
    files = {"cards": lines, "code": ""}
    runs = [("card", "written")]
    [sampled] = run_cases(image, libraries, programs, files, runs, tmp_path).values()
    assert (sampled.told("before"), sampled.told("after")) == ("7", "0")


def test_what_loops_wait_for_is_as_on_a_card(ran: Ran) -> None:
    """A request's tokens are counted, it ends at its limit, and all logits are finite."""
    case = ran["card", "results"]
    assert case.told("first") == "10,31,16843009/0,0,16843009/0,1"
    assert case.told("second") == "11,32,16843009/0,0,16843009/1,1"
    assert case.told("all finite") == "1"
    assert case.told("another kernel") == case.told("set after") == "0"


def test_pools_give_memory_back_at_a_synchronization(ran: Ran) -> None:
    case = ran["card", "pools"]
    assert (case.told("asked"), case.number("of graphs"), case.told("reset")) == (OK, 0, OK)
    assert case.told("not settable") == "cudaErrorInvalidValue"
    assert case.told("no card") == "cudaErrorInvalidDevice"
    assert case.number("taken") == case.number("until then") == 32 << 20
    assert case.number("given back") == 0


def test_a_destroyed_pool_goes_with_its_last_allocation(ran: Ran) -> None:
    case = ran["card", "pools"]
    assert case.told("destroyed") == case.told("freed last") == OK
    assert case.told("from it") == case.told("default") == "cudaErrorInvalidValue"
    assert case.told("default again") == "1"
    # An H100 still had the memory after the last free, which is in the order of its stream.
    assert case.number("its last") == case.number("not gone") == 32 << 20
    assert case.number("gone") == 0


def test_a_reset_leaves_pools_alone_on_the_card(ran: Ran) -> None:
    case = ran["card", "reset"]
    pools, rest = (128 + 32) << 20, (2 + 64) << 20
    assert case.number("taken") == pools + rest
    assert (case.told("reset"), case.number("left")) == (OK, pools)
    assert case.told("attribute") == "cudaErrorInvalidValue"
    # The variable gets another address.
    works = ["variable", "allocated", "pool", "pooled"]
    assert [case.told(name) for name in works] == [OK] * 4
    card = case.report["cards"][0]
    assert card["peak"] == card["context"] + pools + rest


def test_what_a_reset_destroyed_is_known_no_more(ran: Ran) -> None:
    case = ran["card", "stale"]
    assert case.told("reset") == OK
    assert case.told("stream") == case.told("event") == "cudaErrorInvalidResourceHandle"
    assert case.told("handle") == case.told("address") == "cudaErrorInvalidValue"
    assert case.told("space") == OK  # addresses belong to no card


def test_a_managed_variable_is_where_both_can_use_it(ran: Ran) -> None:
    case = ran["card", "managed"]
    assert (case.told("address"), case.told("same"), case.told("known")) == (OK, "1", "1")
    assert case.number("read") == 1  # zero and one: what it begins with is in the device code


def test_a_child_of_a_process_that_used_the_card_cannot(ran: Ran) -> None:
    case = ran["card", "forked"]  # with one report: the child has none
    assert case.lines == [("child", "cudaErrorInitializationError"), ("parent", OK)]


def test_a_library_is_loaded_while_another_thread_allocates(ran: Ran) -> None:
    case = ran["card", "loading"]
    assert case.status == 0  # 142: both threads wait for each other
    assert case.number("loaded") > 0
    [unknown] = case.report["unknown_code"]
    assert (unknown["file"], set(unknown["kernels"])) == ("/work/library.so", {"_Z6kernelv"})


def test_libraries_count_as_used_when_a_run_begins(libraries: Path, devel: str) -> None:
    hour_ago = time.time() - 3600
    os.utime(libraries, (hour_ago, hour_ago))
    assert simulated.libraries(SHARED_CACHE, devel, lambda _: None) == libraries
    assert libraries.stat().st_mtime > hour_ago + 60


def test_without_a_configuration_there_is_no_card(libraries: Path, devel: str) -> None:
    script = (
        "import ctypes; cudart = ctypes.CDLL('/simulator/lib/libcudart.so.13');"
        " print(cudart.cudaGetDeviceCount(ctypes.byref(ctypes.c_int())))"
    )
    command = ["docker", "run", "--rm", "--network=none", f"--volume={libraries}:/simulator/lib:ro"]
    done = subprocess.run(
        [*command, devel, "python3", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "100\n"  # cudaErrorNoDevice
    assert "BUILDER_SIMULATOR names no configuration" in done.stderr
