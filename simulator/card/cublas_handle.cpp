// cuBLAS handles: streams, modes and the workspace, which is the library's own device memory.
#include "cublas_handle.h"

#include <cstdlib>
#include <mutex>
#include <set>

#include "memory.h"

SIMULATED_LIBRARY()

namespace simulator {

namespace {

std::mutex& handles_mutex() {
    static auto* const only = new std::mutex;
    return *only;
}

std::set<cublasHandle_t>& handles() {
    static auto* const all = new std::set<cublasHandle_t>;
    return *all;
}

// The size of the default workspace in bytes: the table of cuBLAS's documentation,
// "cublasSetWorkspace()" (docs.nvidia.com/cuda/cublas): 32 MiB for sm90, sm10x and sm12x, 4 MiB for
// the others.
std::uint64_t default_workspace(const Card& card) {
    const bool large = card.major == 9 || card.major == 10 || card.major == 12;
    return std::uint64_t{large ? 32u : 4u} << 20;
}

// CUBLAS_WORKSPACE_CONFIG (documentation, "Results Reproducibility"): pairs of a size in KiB and
// a count, ":4096:2:16:8". 0: not set, or not understood.
std::uint64_t configured_workspace() {
    const char* text = std::getenv("CUBLAS_WORKSPACE_CONFIG");
    std::uint64_t total = 0;
    while (text != nullptr && *text == ':') {
        char* end = nullptr;
        const std::uint64_t size = std::strtoull(text + 1, &end, 10);
        if (*end != ':') return 0;
        total += (size << 10) * std::strtoull(end + 1, &end, 10);
        text = end;
    }
    return total;
}

struct Status {
    cublasStatus_t status;
    const char *name, *text;
};

// What libcublas 13.1 answers.
constexpr Status kStatuses[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED",
     "the library was not initialized"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE",
     "an unsupported value or parameter was passed to the function"},
    {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH",
     "the function requires an architectural feature absent from the device"},
    {CUBLAS_STATUS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR",
     "an access to GPU memory space failed"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED",
     "the function failed to launch on the GPU"},
    {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED",
     "the requested functionality is not supported"},
    {CUBLAS_STATUS_LICENSE_ERROR, "CUBLAS_STATUS_LICENSE_ERROR", "the license check failed"},
};

constexpr Status kUnknown{CUBLAS_STATUS_INTERNAL_ERROR, "unrecognized status",
                          "unrecognized status"};

const Status& describe(cublasStatus_t status) {
    for (const Status& known : kStatuses) {
        if (known.status == status) return known;
    }
    return kUnknown;
}

}  // namespace

const char* status_name(cublasStatus_t status) { return describe(status).name; }

bool is_handle(cublasHandle_t handle) {
    const std::lock_guard lock(handles_mutex());
    return handles().count(handle) != 0;
}

}  // namespace simulator

using namespace simulator;

// Every function that takes a handle begins with this.
#define WITH_HANDLE(handle) \
    SIMULATED();            \
    if (!is_handle(handle)) return refuse(__func__, CUBLAS_STATUS_NOT_INITIALIZED, "not a handle")

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    SIMULATED();
    if (handle == nullptr) return refuse(__func__, CUBLAS_STATUS_INVALID_VALUE, "a null pointer");
    if (start() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    const int card = current_card();
    if (use_card(card) != cudaSuccess) return CUBLAS_STATUS_ALLOC_FAILED;
    const std::uint64_t configured = configured_workspace();
    const std::uint64_t size = configured != 0 ? configured : default_workspace(cards()[card]);
    void* workspace = nullptr;
    if (allocate(card, size, __func__, &workspace) != cudaSuccess) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    auto* const made = new cublasContext;
    made->card = card;
    made->own_workspace = workspace;
    const std::lock_guard lock(handles_mutex());
    handles().insert(made);
    *handle = made;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    WITH_HANDLE(handle);
    release(handle->own_workspace);
    {
        const std::lock_guard lock(handles_mutex());
        handles().erase(handle);
    }
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t) {
    WITH_HANDLE(handle);
    if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) {
        return refuse(__func__, CUBLAS_STATUS_INVALID_VALUE,
                      "the workspace is not aligned to 256 bytes");
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    WITH_HANDLE(handle);
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
    WITH_HANDLE(handle);
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    WITH_HANDLE(handle);
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
    WITH_HANDLE(handle);
    *mode = handle->pointer_mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    WITH_HANDLE(handle);
    if (mode < 0 || (mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) > 8) {
        return refuse(__func__, CUBLAS_STATUS_INVALID_VALUE,
                      "math mode " + std::to_string(mode) + " does not exist");
    }
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
    WITH_HANDLE(handle);
    *mode = handle->math;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
    WITH_HANDLE(handle);
    handle->atomics = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t* mode) {
    WITH_HANDLE(handle);
    *mode = handle->atomics;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int count) {
    WITH_HANDLE(handle);
    if (count < 0 || count > cards()[handle->card].multiprocessors) {
        return refuse(__func__, CUBLAS_STATUS_INVALID_VALUE,
                      std::to_string(count) + " multiprocessors; the card has " +
                          std::to_string(cards()[handle->card].multiprocessors));
    }
    handle->multiprocessors = count;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetSmCountTarget(cublasHandle_t handle, int* count) {
    WITH_HANDLE(handle);
    *count = handle->multiprocessors;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
    SIMULATED();
    if (version == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
    SIMULATED();
    constexpr int kVersion[] = {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH};
    if (value == nullptr || type < MAJOR_VERSION || type > PATCH_LEVEL) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *value = kVersion[type];
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasGetCudartVersion(void) {
    SIMULATED();
    return CUDART_VERSION;
}

const char* cublasGetStatusName(cublasStatus_t status) {
    SIMULATED();
    return describe(status).name;
}

const char* cublasGetStatusString(cublasStatus_t status) {
    SIMULATED();
    return describe(status).text;
}

}  // extern "C"
