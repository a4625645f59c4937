// What the files of libcudart.so share: the runtime API's declarations, exported.
#pragma once

#pragma GCC visibility push(default)
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#include "memory.h"
#include "streams.h"

namespace simulator {

// Remembers the error for cudaGetLastError, returns it.  Each runtime of a process has its own.
cudaError_t remember(cudaError_t error);

}  // namespace simulator

namespace cudart {

// Whether `device` is a card; else the error to return.
inline cudaError_t check_device(int device) {
    if (const cudaError_t error = simulator::start()) return error;
    const bool known = device >= 0 && device < static_cast<int>(simulator::cards().size());
    return known ? cudaSuccess : cudaErrorInvalidDevice;
}
inline cudaError_t check_devices(int first, int second) {
    if (const cudaError_t error = check_device(first)) return error;
    return check_device(second);
}

// What a launch returns for a grid or a block that no launch may have: NVIDIA's runtime 13.0 hands on
// the driver's cudaErrorInvalidValue (seen with driver 580.159.04), though its headers name
// cudaErrorInvalidConfiguration, which 12.9 returns (before_launches.cpp).
cudaError_t size_error();

// What is true of all simulated cards, as of every card since compute capability 7.0.
constexpr int kWarp = 32;

}  // namespace cudart
