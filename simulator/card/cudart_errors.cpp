// libcudart: errors and versions. The library's entries are handed to the report here.
#include <dlfcn.h>

#include <utility>

#include "cudart.h"

using namespace simulator;

SIMULATED_LIBRARY()

namespace {

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

cudaError_t simulator::remember(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

extern "C" {

cudaError_t cudaGetLastError() {
    SIMULATED();
    return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
    SIMULATED();
    return last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
    SIMULATED();
    return error_name(error);
}

const char* cudaGetErrorString(cudaError_t error) {
    SIMULATED();
    return error_text(error);
}

// The driver of the same release as the headers: the oldest that runs this runtime.
cudaError_t cudaDriverGetVersion(int* version) {
    SIMULATED();
    if (version == nullptr) return remember(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    SIMULATED();
    if (version == nullptr) return remember(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// The driver's function of this name, out of the simulated libcuda.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
    SIMULATED();
    if (symbol == nullptr || function == nullptr) return remember(cudaErrorInvalidValue);
    *function = nullptr;
    using Get = int (*)(const char*, void**, int, std::uint64_t, int*);
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    const auto get = driver == nullptr
                         ? nullptr
                         : reinterpret_cast<Get>(dlsym(driver, "cuGetProcAddress_v2"));
    if (get == nullptr) return remember(cudaErrorInsufficientDriver);
    int found = cudaDriverEntryPointSuccess;
    const int error = get(symbol, function, static_cast<int>(version), flags, &found);
    if (*function == nullptr && found == cudaDriverEntryPointSuccess) {
        found = cudaDriverEntryPointSymbolNotFound;
    }
    if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
    // CUDA_ERROR_NOT_FOUND is reported by the status.
    if (error == cudaErrorSymbolNotFound && status != nullptr) return cudaSuccess;
    return remember(static_cast<cudaError_t>(error));
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
    SIMULATED();
    return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}

cudaError_t cudaProfilerStart() {
    SIMULATED();
    return cudaSuccess;
}

cudaError_t cudaProfilerStop() {
    SIMULATED();
    return cudaSuccess;
}

}  // extern "C"
