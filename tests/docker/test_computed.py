"""A simulated card that computes: results of kernels and of cuBLAS, compared with the host's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.checks import serves, simulated
from builder.checks.server import ServeSpec, launched
from builder.docker import containers
from builder.presets import cards
from simulator.report import Report, first_difference
from support.environment import REPOSITORY, SHARED_CACHE
from support.simulators import Case, digest_of, run_cases
from support.smoke_tests import docker, hello_recipe

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

SOURCES = REPOSITORY / "tests/data/simulator"
CODE = "-gencode=arch=compute_120,code=sm_120"
COMPILE = f"""
nvcc="nvcc -std=c++20 -lineinfo -cudart=shared"
cublas="-L/usr/local/cuda/lib/stubs -lcuda -lcublas -lcublasLt"
$nvcc '-gencode=arch=compute_120,code=[sm_120,compute_120]' -o computed /source/computed.cu $cublas
$nvcc {CODE} --compress-mode=speed -DNUMBER=2 -o stored /source/stored.cu
$nvcc {CODE} --compress-mode=none -DNUMBER=3 -o plain /source/stored.cu
$nvcc {CODE} -DNUMBER=4 -o unknown /source/stored.cu
for number in 2 3; do
    $nvcc -arch=compute_120 -ptx -DNUMBER=$number -o $number.ptx /source/stored.cu
done
"""
CASES = [
    *("adds", "reduces", "counts", "variables", "replay", "moves", "launches", "texts", "products"),
    *("beyond", "misaligned", "pageable", "lacking", "two_cards", "unwritten", "tiles"),
]
STORED = ("stored", "plain", "unknown")
RUNS = [*(("computed", case) for case in CASES), *((name, "sum") for name in STORED)]
RACES = [("computed", case) for case in ("races", "reduces", "tiles")]
OK = "cudaSuccess"
Ran = Mapping[tuple[str, str], Case]


@pytest.fixture(scope="module")
def programs(devel: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    folder.chmod(0o755)  # the container's user runs them
    mounts = [f"--volume={folder}:/work", f"--volume={SOURCES}:/source:ro"]
    call = ["run", "--rm", "--network=none", *mounts, "--workdir=/work", devel]
    docker(*call, "sh", "-euc", COMPILE)
    return folder


@pytest.fixture(scope="module")
def ptx(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The PTX of two programs, by the digest of their machine code."""
    folder = tmp_path_factory.mktemp("ptx")
    folder.chmod(0o755)
    for number, name in (2, "stored"), (3, "plain"):
        shutil.copy(programs / f"{number}.ptx", folder / f"{digest_of(programs / name)}.ptx")
    return folder


def cases(
    hello: dict[str, Any],
    devel: str,
    programs: Path,
    ptx: Path,
    runs: list[tuple[str, str]],
    folder: Path,
    *,
    races: bool = False,
    outputs: bool = False,
) -> Ran:
    card = cards.load(REPOSITORY, "5090")
    compute = cards.Compute(ptx=simulated.PTX, races=races, outputs=outputs)
    files = {"cards": cards.text([card, card], compute=compute), "code": ""}
    libraries = simulated.libraries(SHARED_CACHE, devel, print, computes=True)
    image = f"builder-base/cuda-13.0:runtime-{hello['plan']['base']['key'][:12]}"
    return run_cases(image, libraries, programs, files, runs, folder, ptx=ptx)


@pytest.fixture(scope="module")
def ran(
    hello: dict[str, Any],
    devel: str,
    programs: Path,
    ptx: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Ran:
    folder = tmp_path_factory.mktemp("simulated")
    return cases(hello, devel, programs, ptx, RUNS, folder)


def test_kernels_give_the_hosts_results(ran: Ran) -> None:
    for name in ("adds", "reduces", "counts"):
        case = ran["computed", name]
        assert case.number("wrong") == 0, name
    assert ran["computed", "counts"].number("total") == 50000
    report = ran["computed", "adds"].report
    [launch] = report["launches"]
    assert report["mode"] == "compute"
    assert (launch["count"], launch["computed"]) == (1, 1)
    assert launch["instructions"] > 100000  # each thread has several
    assert report["violations"] == []


def test_ptx_is_found_by_the_digest_of_machine_code(ran: Ran) -> None:
    for name, number in (("stored", 2), ("plain", 3)):
        case = ran[name, "sum"]
        assert (case.told("launch"), case.number("sum")) == (OK, number * 63 * 64 // 2), name


def test_two_runs_part_at_the_launch_that_stores_other_bytes(
    hello: dict[str, Any], devel: str, programs: Path, ptx: Path, tmp_path: Path, ran: Ran
) -> None:
    assert ran["stored", "sum"].report["outputs"] == []  # nobody asked for checksums
    runs = [("stored", "sum"), ("plain", "sum"), ("computed", "adds"), ("computed", "reduces")]
    folders = tmp_path / "once", tmp_path / "again"
    for folder in folders:
        folder.mkdir()
    once, again = (
        cases(hello, devel, programs, ptx, runs, folder, outputs=True) for folder in folders
    )
    reports = {key: Report.model_validate(case.report) for key, case in once.items()}
    for key, case in again.items():
        assert reports[key].outputs
        assert first_difference(reports[key], Report.model_validate(case.report)) == ""
    found = first_difference(reports["stored", "sum"], reports["plain", "sum"])
    assert found == "launch 1, add, stores other bytes"  # twice, three times each number


def test_a_kernel_without_ptx_is_named_and_never_skipped(ran: Ran) -> None:
    case = ran["unknown", "sum"]
    assert case.told("launch") == "cudaErrorNoKernelImageForDevice"
    [(_, why)] = case.violations()
    assert why.startswith("not computed: no PTX is known for the machine code ")
    assert why.endswith(", in /work/unknown")
    assert case.report["violations"][0]["kernel"] == "_Z3addPKiPi"
    assert case.report["launches"] == []


def test_variables_have_their_initial_values_and_keep_what_is_written(ran: Ran) -> None:
    case = ran["computed", "variables"]
    assert (case.number("wrong"), case.number("wrong then")) == (0, 0)
    assert case.told("to") == case.told("from") == case.told("address") == OK
    assert (case.number("launches"), case.number("shown")) == (42, 7 + 41 + 42)
    assert (case.number("set"), case.number("reset")) == (0, 40)


def test_a_managed_variable_is_never_two(ran: Ran) -> None:
    case = ran["computed", "two_cards"]
    assert (case.told("first"), case.told("second")) == (OK, "cudaErrorNoKernelImageForDevice")
    assert case.number("ones") == 1
    [(_, why)] = case.violations()
    assert why.startswith("not computed: managed variables on two cards, in /work/computed")


def test_a_graph_keeps_the_arguments_of_its_kernels(ran: Ran) -> None:
    case = ran["computed", "replay"]
    assert case.number("before") == 0  # a capture runs nothing
    assert case.number("sum") == 14  # 2 (s + 1), three times
    assert case.told("read") == case.told("set") == OK
    assert case.number("then") == 14 + 1 + 1


def test_memory_of_all_kinds_has_contents(ran: Ran) -> None:
    case = ran["computed", "moves"]
    assert case.number("pooled") == 63 + 63
    assert case.number("row") == (16 + 3) * 2
    assert case.number("cleared") == (16 + 4) * 2  # 16 + 3 is cleared
    assert case.number("mapped") == 6  # 3 at two addresses
    assert (case.told("hole"), case.number("last")) == (OK, 9)
    assert case.number("peak") < 300 * 1024  # KiB: zeros take no memory


def test_launches_of_all_kinds(ran: Ran) -> None:
    case = ran["computed", "launches"]
    assert case.told("cooperative") == case.told("64 KiB") == OK
    assert (case.number("wrong"), case.number("sum")) == (0, 1024)
    # CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES for 32 bytes of 28, as driver 580.159.04 returned.
    assert (case.number("padded"), case.number("packed"), case.number("ones")) == (701, 0, 2)
    [(_, why)] = case.violations()
    assert why == "32 bytes of packed arguments; the kernel's parameters have 28"
    assert [value for name, value in case.lines if name == "said"] == ["41", "42", OK]


def test_ptx_that_a_program_loads_is_computed(ran: Ran) -> None:
    case = ran["computed", "texts"]
    assert [case.number(name) for name in ("load", "global", "size", "first")] == [0, 0, 4, 0]
    assert (case.number("newer attribute"), case.number("shared memory")) == (1, 0)
    assert case.number("value") == 10 + 5 + 100


def test_cublas_computes(ran: Ran) -> None:
    case = ran["computed", "products"]
    exact = ["", " transposed", " scaled", " halves", " bfloat16", " second", " vector", " solved"]
    assert [case.number(f"millionths{name}") for name in exact] == [0] * len(exact)
    # In half precision, sums have 11 bits; D of cuBLASLt is rounded once.
    assert 300 < case.number("millionths in halves") < 5000
    assert 0 < case.number("millionths light") < 500
    assert (case.number("before"), case.told("graph"), case.number("wrong")) == (0, OK, 0)
    assert (case.number("not computed"), case.number("outside")) == (15, 13)
    whys = [why for _, why in case.violations()]
    assert whys[0].startswith("not computed: attribute ")
    assert whys[1].startswith("matrix 1 of the batch: C, 8580 bytes, is not in memory")


def test_an_index_out_of_bounds_by_one_is_found(ran: Ran) -> None:
    case = ran["computed", "beyond"]
    assert case.told("launch") == case.told("wait") == "cudaErrorIllegalAddress"
    assert case.told("allocate") == "cudaErrorIllegalAddress"  # the context is lost
    assert case.told("reset") == case.told("allocate again") == OK
    [(_, why)] = case.violations()
    assert case.report["violations"][0]["kernel"] == "_Z10add_beyondPKfPfi"
    assert "writes 4 bytes" in why
    assert "0 bytes after the end of the allocation of 4096 bytes" in why
    assert "/computed.cu:" in why
    assert "block 4,0,0, thread 0,0,0" in why


def test_faults_are_the_errors_of_cuda(ran: Ran) -> None:
    case = ran["computed", "misaligned"]
    assert case.told("launch") == case.told("wait") == "cudaErrorMisalignedAddress"
    case = ran["computed", "pageable"]
    assert case.told("launch") == case.told("wait") == "cudaErrorIllegalAddress"
    assert "reads 4 bytes" in case.violations()[0][1]


def test_an_instruction_that_is_not_computed_is_named(ran: Ran) -> None:
    case = ran["computed", "lacking"]
    assert (case.told("launch"), case.told("wait")) == ("cudaErrorNotSupported", OK)
    [(_, why)] = case.violations()
    assert why.startswith("not computed: vadd4")
    assert case.report["violations"][0]["kernel"] == "_Z5lacksPi"


def test_boxes_of_a_tensor_are_moved_by_maps_that_the_driver_made(ran: Ran) -> None:
    case = ran["computed", "tiles"]
    assert (case.number("encode"), case.told("wait"), case.number("wrong")) == (0, OK, 0)
    for wrong in ("no width", "no multiple of 16 bytes", "wider than its swizzle"):
        assert case.number(wrong) == 1, wrong  # CUDA_ERROR_INVALID_VALUE
    assert case.violations() == []


def test_a_missing_barrier_is_found(
    hello: dict[str, Any], devel: str, programs: Path, ptx: Path, tmp_path: Path
) -> None:
    found = cases(hello, devel, programs, ptx, RACES, tmp_path, races=True)
    case = found["computed", "races"]
    assert case.told("launch") == OK  # it is computed all the same
    assert case.report["violations"][0]["kernel"] == "_Z6reduceILb0EEvPKfPf"
    assert case.violations()[0][1].startswith("race: reads shared memory at offset 64, which lane")
    case = found["computed", "reduces"]
    assert (case.told("launch"), case.number("wrong")) == (OK, 0)


def test_nothing_begins_as_zero(ran: Ran) -> None:
    case = ran["computed", "unwritten"]
    told = ("map", "pool", "launch with the mapping", "launch")
    assert [case.told(each) for each in told] == [OK] * len(told)
    assert case.number("zeros") == 0


LIBRARY = "/opt/engine/lib/libhello-cuda.so"
KERNELS = {"update_state", "compute_logits"}


@pytest.fixture
def hello_on_a_card(
    hello: dict[str, Any], devel: str, tmp_path: Path
) -> Iterator[simulated.Simulation]:
    """What hello-sm120 gets to compute its answers."""
    engine = f"--volume={REPOSITORY / 'engines/hello-sm120'}:/source:ro"
    store = tmp_path / "ptx"
    store.mkdir(0o755)
    containers.copy_out(hello["references"][0], LIBRARY, tmp_path / "hello.so")
    compile_hello = "nvcc -ptx -std=c++20 -arch=sm_120 -DHELLO_CUDA_NO_VMM -I/source/include"
    text = docker(
        *("run", "--rm", "--network=none", engine, devel, "sh", "-euc"),
        f"{compile_hello} /source/src/hello_cuda.cu -o /tmp/hello.ptx; cat /tmp/hello.ptx",
    )
    (store / f"{digest_of(tmp_path / 'hello.so')}.ptx").write_text(text)
    card = cards.load(REPOSITORY, "5090")
    files = {"cards": cards.text([card], compute=cards.Compute(ptx=simulated.PTX)), "code": ""}
    libraries = simulated.libraries(SHARED_CACHE, devel, print, computes=True)
    with simulated.simulation(libraries, files, tmp_path / "simulation", ptx=store) as simulation:
        yield simulation


def test_hello_finds_that_its_card_and_its_cpu_path_give_the_same_text(
    hello: dict[str, Any], hello_on_a_card: simulated.Simulation
) -> None:
    mounts = hello_on_a_card.mounts
    options = [f"--volume={path}:{at}:ro" for at, path in mounts.volumes.items()]
    options += [f"--env={name}={value}" for name, value in mounts.env.items()]
    program = "--entrypoint=/opt/engine/bin/hello-server"
    sealed = ["--rm", "--network=none", "--read-only", program]
    docker("run", *sealed, *options, hello["references"][0], "--check")  # ends with 0
    report = hello_on_a_card.report()
    assert report is not None
    assert report.violations == ()
    assert {name for each in report.launches for name in KERNELS if name in each.kernel} == KERNELS
    assert all(each.computed == each.count for each in report.launches)


def test_hellos_server_answers_from_the_card_as_from_its_cpu(
    hello: dict[str, Any], hello_on_a_card: simulated.Simulation, tmp_path: Path
) -> None:
    recipe = hello_recipe()
    assert recipe.serve is not None
    assert recipe.image.port is not None
    model = tmp_path / "model.gguf"
    serves.write_model(model)
    texts = []
    report = None
    for mounts in (None, hello_on_a_card.mounts):
        spec = ServeSpec(model, 2048, simulator=mounts)
        start = launched(hello["references"][0], recipe.serve, recipe.image.port, spec)
        with start as server:
            server.wait(60)
            texts.append(serves.completes(server))
            report = hello_on_a_card.settled()
    assert texts[0] == texts[1]
    assert report is not None
    assert report.mode == "compute"
    assert report.launched >= 2 * serves.TOKENS
    assert sum(each.computed for each in report.launches) == report.launched
