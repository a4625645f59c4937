"""The simulated libraries as programs meet them: names and versions, the driver API, cuBLAS.

Programs run in the image that engines are compiled in, which has the real libraries too.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from builder.core.farm import installed
from builder.presets import cards
from support.simulators import Simulated

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("smoke")]

MIB = 1 << 20
CUDA = "/usr/local/cuda"

# Each line of the output: what it belongs to, and a name, or a line of a header.
LIST = f"""
exported() {{ nm -D --defined-only --with-symbol-versions "$2" | sed "s/.* /$1 /"; }}
for library in libcudart.so.13 libcublas.so.13 libcublasLt.so.13; do
    exported "real:$library" {CUDA}/lib/$library
done
exported real:libcuda.so.1 {CUDA}/lib/stubs/libcuda.so.1
for library in libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libcuda.so.1; do
    exported "ours:$library" /simulator/lib/$library
    readelf -d /simulator/lib/$library | sed -n "s/.*SONAME.*\\[\\(.*\\)\\]/soname:$library \\1/p"
done
for header in cuda_runtime_api.h cuda_profiler_api.h cublas_v2.h cublasXt.h cublasLt.h cublas.h; do
    echo "#include <$header>" | g++ -E -P -x c++ -I {CUDA}/include - | sed 's/^/headers: /'
done
"""


@pytest.fixture
def symbols(images: dict[str, str], simulator_libraries: Path) -> dict[str, set[str]]:
    """What the real and the simulated libraries export, and the text of CUDA's headers."""
    docker = ["docker", "run", "--rm", "--network=none"]
    docker += [f"--volume={simulator_libraries}:/simulator/lib:ro", images["devel"]]
    done = subprocess.run([*docker, "sh", "-euc", LIST], capture_output=True, text=True, check=True)
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        section, _, rest = line.partition(" ")
        found.setdefault(section, set()).add(rest)
    return found


def card(name: str = "5090") -> str:
    return cards.text([cards.load(installed(), name)])


def test_the_libraries_export_what_the_real_ones_do(symbols: dict[str, set[str]]) -> None:
    declared = set(re.findall(r"\w+", "\n".join(symbols["headers:"])))
    for library in ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"):
        real, ours = symbols[f"real:{library}"], symbols[f"ours:{library}"]
        # The header declares it, and the library of 13.1.0.3 does not have it.
        extra = {"cublasLtDisableCpuInstructionsSetMask@@libcublasLt.so.13"}
        assert ours - real <= extra, library
        missing = {name.split("@")[0] for name in real - ours}
        assert not missing & declared, library
    assert len(symbols["ours:libcudart.so.13"]) > 390
    # The driver's symbols have no versions.  The base's stub has what cuda.h declares.
    profiler = {"cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"}
    assert symbols["ours:libcuda.so.1"] == symbols["real:libcuda.so.1"] | profiler
    for name in ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcuda.so.1"):
        assert symbols[f"soname:{name}"] == {name}


DRIVER = """
cu = library("libcuda.so.1")
rt = library("libcudart.so.13")
result = {
    "before": cu.cuMemGetInfo_v2(c.byref(c.c_size_t()), c.byref(c.c_size_t())),
    "init": cu.cuInit(0),
    "device": out(c.c_int, cu.cuDeviceGet, 0),
    "no device": cu.cuDeviceGet(c.byref(c.c_int()), 1),
    "memory": out(c.c_size_t, cu.cuDeviceTotalMem_v2, 0),
    "driver": [out(c.c_int, cu.cuDeviceGetAttribute, number, 0) for number in range(1, 148)],
    "runtime": [out(c.c_int, rt.cudaDeviceGetAttribute, number, 0) for number in range(1, 148)],
    "error": out(c.c_char_p, lambda place: cu.cuGetErrorName(2, place))[1].decode(),
}
address, status = c.c_void_p(), c.c_int()
def entry(name, version):
    code = cu.cuGetProcAddress_v2(name, c.byref(address), version, c.c_uint64(0), c.byref(status))
    same = [symbol for symbol in ("cuMemAlloc", "cuMemAlloc_v2")
            if address.value == c.cast(getattr(cu, symbol), c.c_void_p).value]
    return [code, status.value, same]
nvml, handle, name = library("libnvidia-ml.so.1"), c.c_void_p(), c.create_string_buffer(96)
result["nvml"] = [nvml.nvmlInit_v2(), out(c.c_uint, nvml.nvmlDeviceGetCount_v2),
                  nvml.nvmlDeviceGetHandleByIndex_v2(0, c.byref(handle)),
                  nvml.nvmlDeviceGetHandleByIndex_v2(1, c.byref(c.c_void_p())),
                  nvml.nvmlDeviceGetName(handle, name, 96), name.value.decode()]
found = c.c_void_p()
def by_address(text):  # as PyTorch asks
    return nvml.nvmlDeviceGetHandleByPciBusId_v2(text, c.byref(found))
result["by address"] = [by_address(b"00000000:01:00.0"), found.value == handle.value,
                        by_address(b"00000000:02:00.0"), by_address(b"x"),
                        nvml.nvmlDeviceGetComputeRunningProcesses(handle, None, None),
                        out(c.c_int, nvml.nvmlSystemGetCudaDriverVersion_v2)]
heard = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p, c.c_size_t)(lambda *_: None)
logs = out(c.c_void_p, lambda place: cu.cuLogsRegisterCallback(heard, None, place))
result["logs"] = [logs[0], cu.cuLogsUnregisterCallback(c.c_void_p(logs[1])),
                  cu.cuLogsUnregisterCallback(None)]
result["entries"] = [entry(b"cuMemAlloc", 2000), entry(b"cuMemAlloc", 13000),
                     entry(b"cuNothing", 13000), entry(b"cuMemCreate", 3020)]
"""


def test_the_driver_and_the_runtime_answer_for_the_card(simulated: Simulated) -> None:
    result, report = simulated(DRIVER, card())
    assert result["before"] == 201  # CUDA_ERROR_INVALID_CONTEXT
    assert (result["init"], result["device"], result["no device"]) == (0, [0, 0], 101)
    assert result["memory"] == [0, report["cards"][0]["memory"]]
    assert result["driver"] == result["runtime"]
    answers = [value for _, value in result["driver"]]
    # cuda.h's CU_DEVICE_ATTRIBUTE_…: multiprocessors, capability, shared memory by opting in.
    assert [answers[number - 1] for number in (16, 75, 76, 97)] == [170, 12, 0, 101376]
    assert result["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert result["nvml"] == [0, [0, 1], 0, 2, 0, "NVIDIA GeForce RTX 5090"]
    assert result["by address"] == [0, True, 6, 2, 3, [0, 13000]]
    assert result["logs"] == [0, 0, 1]  # CUDA_ERROR_INVALID_VALUE
    assert result["entries"] == [
        [0, 0, ["cuMemAlloc"]],
        [0, 0, ["cuMemAlloc_v2"]],
        [0, 1, []],  # CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
        [0, 2, []],  # …_VERSION_NOT_SUFFICIENT
    ]


BEFORE = """
rt, blas = library("libcudart.so.12"), library("libcublas.so.12")
now = library("libcudart.so.13")
properties = c.create_string_buffer(b"\\xff" * 1032, 1032)
def number(place, kind=c.c_int):
    return kind.from_buffer(properties, place).value
place, handle = c.c_void_p(), c.c_void_p()
result = {
    "properties": rt.cudaGetDeviceProperties_v2(properties, 0),
    "name": properties.value.decode(),
    "sizes": [number(at, c.c_size_t) for at in (288, 352, 568, 640, 696, 720)],
    "numbers": [number(at) for at in (360, 364, 388, 612, 616, 688, 712)],
    "not there": [number(at) for at in (348, 384, 392, 404, 416, 608, 668, 692, 780, 1028)],
    "allocated": rt.cudaMalloc(c.byref(place), c.c_size_t(5 << 20)),
    "freed by the other": now.cudaFree(place),
    "cuBLAS": blas.cublasCreate_v2(c.byref(handle)),
    "refused": rt.cudaSetDevice(7),
    "last": [now.cudaGetLastError(), rt.cudaPeekAtLastError(), rt.cudaGetLastError()],
    "this release alone": [hasattr(each, "cudaGetDeviceProperties_v2") for each in (rt, now)],
}
"""


def test_programs_for_cuda_12_share_the_cards_with_those_for_13(simulated: Simulated) -> None:
    """The places of the fields: offsetof with ``driver_types.h`` of CUDA 12.8.

    LMDeploy's wheel links CUDA 12's libraries, its PyTorch CUDA 13's.
    """
    result, report = simulated(BEFORE, card())
    used = cards.load(installed(), "5090")
    assert result["properties"] == 0
    assert result["name"] == used.name
    # totalGlobalMem, totalConstMem, surfaceAlignment, sharedMemPerMultiprocessor, …BlockOptin,
    # reservedSharedMemPerBlock
    assert result["sizes"] == [
        *(report["cards"][0]["memory"], 65536, 512, used.shared_per_multiprocessor),
        *(used.shared_per_block_optin, 1024),
    ]
    # major, minor, multiProcessorCount, memoryBusWidth, l2CacheSize, cooperativeLaunch,
    # maxBlocksPerMultiProcessor
    assert result["numbers"] == [12, 0, used.multiprocessors, used.bus_width, used.l2, 1, 24]
    # clockRate, deviceOverlap, kernelExecTimeoutEnabled, computeMode, maxTexture1DLinear,
    # memoryClockRate, singleToDoublePrecisionPerfRatio, cooperativeMultiDeviceLaunch, reserved
    assert set(result["not there"]) == {0}
    assert (result["allocated"], result["freed by the other"], result["cuBLAS"]) == (0, 0, 0)
    assert result["refused"] == 101  # cudaErrorInvalidDevice
    assert result["last"] == [0, 101, 101]  # each runtime has an error of its own
    assert result["this release alone"] == [True, False]


VMM = """
cu = library("libcuda.so.1")
cu.cuInit(0)
context = c.c_void_p()
cu.cuDevicePrimaryCtxRetain(c.byref(context), 0)
cu.cuCtxSetCurrent(context)
u64 = c.c_uint64
MIB = 1 << 20

class Wanted(c.Structure):  # CUmemAllocationProp: pinned memory of card 0
    _fields_ = [("type", c.c_int), ("handles", c.c_int), ("location", c.c_int), ("id", c.c_int),
                ("rest", c.c_uint64 * 3)]

wanted = Wanted(1, 0, 1, 0)
class Access(c.Structure):  # CUmemAccessDesc: reading and writing by card 0
    _fields_ = [("location", c.c_int), ("id", c.c_int), ("flags", c.c_int)]
access = Access(1, 0, 3)

def used():
    free, total = c.c_size_t(), c.c_size_t()
    cu.cuMemGetInfo_v2(c.byref(free), c.byref(total))
    return (total.value - free.value) / MIB

def create(mib):
    handle = u64()
    size = c.c_size_t(mib * MIB)
    return cu.cuMemCreate(c.byref(handle), size, c.byref(wanted), u64(0)), handle

def at(start, mib):
    return u64(start.value + mib * MIB)

start = used()
granularity = out(c.c_size_t, cu.cuMemGetAllocationGranularity, c.byref(wanted), 0)
space = u64()
terabyte = c.c_size_t(1 << 40)
reserved = cu.cuMemAddressReserve(c.byref(space), terabyte, c.c_size_t(0), u64(0), u64(0))
after_reserve = used() - start
odd, _ = create(3)
made, handle = create(6)
after_create = used() - start
size = c.c_size_t(6 * MIB)
outside = cu.cuMemMap(u64(space.value - 2 * MIB), size, c.c_size_t(0), handle, u64(0))
mapped = cu.cuMemMap(space, size, c.c_size_t(0), handle, u64(0))
again = cu.cuMemMap(space, size, c.c_size_t(0), handle, u64(0))
allowed = cu.cuMemSetAccess(space, size, c.byref(access), c.c_size_t(1))
beyond = cu.cuMemSetAccess(space, c.c_size_t(8 * MIB), c.byref(access), c.c_size_t(1))
released = cu.cuMemRelease(handle)
while_mapped = used() - start
written = cu.cuMemcpyHtoD_v2(at(space, 4), b"simulated", c.c_size_t(9))
back = c.create_string_buffer(9)
read = cu.cuMemcpyDtoH_v2(back, at(space, 4), c.c_size_t(9))
past_end = cu.cuMemcpyHtoD_v2(at(space, 6), b"simulated", c.c_size_t(9))
unmapped = cu.cuMemUnmap(space, size)
after_unmap = used() - start
too_much, _ = create(64 << 10)
freed = cu.cuMemAddressFree(space, terabyte)
result = dict(granularity=granularity, reserved=reserved, after_reserve=after_reserve, odd=odd,
              made=made, after_create=after_create, outside=outside, mapped=mapped, again=again,
              allowed=allowed, beyond=beyond, released=released, while_mapped=while_mapped,
              written=written, read=read, back=back.raw.decode(), past_end=past_end,
              unmapped=unmapped, after_unmap=after_unmap, too_much=too_much, freed=freed)
"""
INVALID_VALUE, OUT_OF_MEMORY = 1, 2


def test_virtual_memory_is_counted_when_it_is_made_and_freed_when_nothing_maps_it(
    simulated: Simulated,
) -> None:
    result, report = simulated(VMM, card())
    assert result["granularity"] == [0, 2 * MIB]
    assert (result["reserved"], result["after_reserve"]) == (0, 0)
    assert result["odd"] == INVALID_VALUE  # no multiple of the granularity
    assert (result["made"], result["after_create"]) == (0, 6)
    assert (result["outside"], result["mapped"]) == (INVALID_VALUE, 0)
    assert result["again"] == INVALID_VALUE
    assert (result["allowed"], result["beyond"]) == (0, INVALID_VALUE)
    assert (result["released"], result["while_mapped"]) == (0, 6)
    assert (result["written"], result["read"], result["back"]) == (0, 0, "simulated")
    assert result["past_end"] == INVALID_VALUE
    assert (result["unmapped"], result["after_unmap"]) == (0, 0)
    assert (result["too_much"], result["freed"]) == (OUT_OF_MEMORY, 0)
    (failed,) = report["failed"]
    assert (failed["function"], failed["requested"]) == ("cuMemCreate", 64 << 30)
    assert report["cards"][0]["used"] == report["cards"][0]["context"]
    assert report["cards"][0]["peak"] == report["cards"][0]["context"] + 6 * MIB


ADDRESSES = """
cu, rt = library("libcuda.so.1"), library("libcudart.so.13")
size, KIB, MIB, DEFAULT = c.c_size_t, 1 << 10, 1 << 20, 4
rt.cudaFree(None)

def used():
    free, total = size(), size()
    rt.cudaMemGetInfo(c.byref(free), c.byref(total))
    return (total.value - free.value) / MIB

def small():
    place = c.c_void_p()
    assert rt.cudaMalloc(c.byref(place), size(KIB)) == 0
    return place

start, place, most = used(), c.c_void_p(), size(2**64 - 1)
result = {
    "most": [rt.cudaMalloc(c.byref(place), most), rt.cudaMallocAsync(c.byref(place), most, None),
             rt.cudaMallocManaged(c.byref(place), most, 1)],
    "after": used() - start,
}
freed, kept, buffer = small(), small(), c.create_string_buffer(64)
rt.cudaFree(freed)
result["freed"] = rt.cudaMemcpy(freed, buffer, size(64), DEFAULT)
result["kept"] = rt.cudaMemcpy(kept, buffer, size(64), DEFAULT)
space = c.c_uint64()
cu.cuMemAddressReserve(c.byref(space), size(2 * MIB), size(0), c.c_uint64(0), c.c_uint64(0))
result["not mapped"] = rt.cudaMemcpy(buffer, c.c_void_p(space.value), size(64), DEFAULT)
rt.cudaFree(kept)

cu.cuMemAllocAsync(c.byref(place), size(100 * MIB), None)
result["in order"] = [used() - start, cu.cuMemFreeAsync(place, None)]
cu.cuCtxSynchronize()
result["in order"].append(used() - start)
"""


def test_no_address_without_memory_is_given_read_or_written(simulated: Simulated) -> None:
    result, report = simulated(ADDRESSES, card())
    assert result["most"][:2] == [OUT_OF_MEMORY] * 2
    assert result["most"][2] == OUT_OF_MEMORY  # there are not so many addresses
    assert result["after"] == 0
    assert (result["freed"], result["kept"], result["not mapped"]) == (
        INVALID_VALUE,
        0,
        INVALID_VALUE,
    )
    assert result["in order"] == [128, 0, 0]
    assert report["cards"][0]["used"] == report["cards"][0]["context"]


CAPTURE = """
rt = library("libcudart.so.13")
stream, graph, status, place = c.c_void_p(), c.c_void_p(), c.c_int(), c.c_void_p()
rt.cudaMalloc(c.byref(place), c.c_size_t(4))
rt.cudaStreamCreate(c.byref(stream))
def captured(act):
    rt.cudaStreamBeginCapture(stream, 0)
    return [act(), rt.cudaStreamEndCapture(stream, c.byref(graph))]
result = {
    "asked": captured(lambda: rt.cudaStreamIsCapturing(None, c.byref(status))),
    "used": captured(lambda: rt.cudaMemsetAsync(place, 0, c.c_size_t(4), None)),
}
"""


def test_a_question_about_the_default_stream_ends_no_capture(simulated: Simulated) -> None:
    result, _ = simulated(CAPTURE, card())
    implicit, invalidated = 906, 901
    assert result == {"asked": [implicit, 0], "used": [implicit, invalidated]}


UNSUPPORTED = """
cu, rt, blas = library("libcuda.so.1"), library("libcudart.so.13"), library("libcublas.so.13")
result = [cu.cuInit(0), rt.cudaGraphicsMapResources(0, None, None), blas.cublasSaxpy_v2(None),
          cu.cuMemImportFromShareableHandle(None, None, 0),
          cu.cuMemImportFromShareableHandle(None, None, 0)]
"""


def test_a_call_that_is_not_implemented_is_named_in_the_report(simulated: Simulated) -> None:
    result, report = simulated(UNSUPPORTED, card())
    assert result == [0, 801, 15, 801, 801]
    counted = {call["function"]: call["count"] for call in report["unsupported"]}
    assert counted == {
        "cudaGraphicsMapResources": 1,
        "cublasSaxpy_v2": 1,
        "cuMemImportFromShareableHandle": 2,
    }
    assert {"cuMemCreate", "cudaMalloc", "cublasGemmEx"} <= set(report["implemented"])
    assert not set(counted) & set(report["implemented"])


CUBLAS = """
rt, blas = library("libcudart.so.13"), library("libcublas.so.13")
blas.cublasGetStatusString.restype = c.c_char_p
size = c.c_size_t
def used():
    free, total = size(), size()
    rt.cudaMemGetInfo(c.byref(free), c.byref(total))
    return total.value - free.value
def memory(bytes):
    place = c.c_void_p()
    assert rt.cudaMalloc(c.byref(place), size(bytes)) == 0
    return place

N, T, F32, F16, BF16, I8, COMPUTE, COMPUTE16 = 0, 1, 0, 2, 14, 3, 68, 64
one = c.c_float(1)
a, b, cc = memory(64 * 128 * 4), memory(128 * 32 * 4), memory(64 * 32 * 4)
start = used()
handle = c.c_void_p()
created = blas.cublasCreate_v2(c.byref(handle))
workspace = used() - start
def gemm(m=64, n=32, k=128, lda=64, ldb=128, ldc=64, ta=N, tb=N, at=F32, bt=F32, ct=F32,
         compute=COMPUTE, handle=handle, alpha=c.byref(one), to=cc):
    return blas.cublasGemmEx(handle, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, c.byref(one),
                             to, ct, ldc, compute, -1)
statuses = {
    "good": gemm(),
    "transposed": gemm(ta=T, lda=128),
    "half": gemm(at=F16, bt=F16, ct=F16, compute=COMPUTE16),
    "nothing to do": gemm(m=0),
    "no handle": gemm(handle=None),
    "lda": gemm(lda=63),
    "lda of a transposed": gemm(ta=T, lda=64),
    "ldc": gemm(ldc=32),
    "negative": gemm(m=-1),
    "alpha": gemm(alpha=None),
    "types": gemm(at=F16, bt=BF16),
    "computation": gemm(at=I8, bt=I8, ct=F16),
    "too large for its memory": gemm(m=1024, lda=1024, ldc=1024),
    "host memory": gemm(to=c.create_string_buffer(64 * 32 * 4)),
}
result = {
    "created": created, "workspace": workspace, "statuses": statuses,
    "sgemm": blas.cublasSgemm_v2(handle, N, N, 64, 32, 128, c.byref(one), a, 64, b, 128,
                                 c.byref(one), cc, 64),
    "misaligned": blas.cublasSetWorkspace_v2(handle, c.c_void_p(a.value + 8), size(4096)),
    "text": blas.cublasGetStatusString(7).decode(),
    "destroyed": [blas.cublasDestroy_v2(handle), blas.cublasDestroy_v2(handle)],
    "left": used() - start,
}
"""


def test_cublas_checks_its_arguments_and_counts_its_workspace(simulated: Simulated) -> None:
    result, report = simulated(CUBLAS, card())
    assert (result["created"], result["workspace"]) == (0, 32 * MIB)
    not_initialized, invalid, failed, not_supported = 1, 7, 13, 15
    assert result["statuses"] == {
        **dict.fromkeys(["good", "transposed", "half", "nothing to do"], 0),
        "no handle": not_initialized,
        **dict.fromkeys(["lda", "lda of a transposed", "ldc", "negative", "alpha"], invalid),
        **dict.fromkeys(["types", "computation"], not_supported),
        **dict.fromkeys(["too large for its memory", "host memory"], failed),
    }
    assert (result["sgemm"], result["misaligned"]) == (0, invalid)
    assert result["text"] == "an unsupported value or parameter was passed to the function"
    assert (result["destroyed"], result["left"]) == ([0, not_initialized], 0)
    assert report["called"]["cublasGemmEx"] == len(result["statuses"])
    told = {(refused["error"], refused["why"]) for refused in report["violations"]}
    assert ("CUBLAS_STATUS_INVALID_VALUE", "lda is 63, less than 64 rows") in told
    assert ("CUBLAS_STATUS_INVALID_VALUE", "lda is 64, less than 128 rows") in told
    allocated = {entry["function"]: entry["largest"] for entry in report["allocations"]}
    assert allocated["cublasCreate_v2"] == 32 * MIB
