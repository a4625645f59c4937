// libcudart.so.12: what a card says about itself, as programs for CUDA 12 expect it.
//
// They call cudaGetDeviceProperties_v2 (cuda_runtime_api.h of 12.x renames the function to it), and
// their cudaDeviceProp (driver_types.h) has eight numbers that CUDA 13 removed.
#include <cstddef>
#include <cstring>

#include "cudart.h"

#if CUDART_VERSION >= 13000

using namespace simulator;

namespace {

// Fields that both versions have, from ``begin`` until ``end``.  Before them, CUDA 12 has a number
// that is 0 here, or padding.  A run begins where padding may differ.
struct Run {
    std::size_t begin, end, before, alignment;
};

constexpr std::size_t kNumber = sizeof(int), kSize = sizeof(std::size_t);

#define AT(field) offsetof(cudaDeviceProp, field)

constexpr Run kRuns[] = {
    {AT(name), AT(maxGridSize) + 3 * kNumber, 0, kSize},
    {AT(totalConstMem), AT(multiProcessorCount), kNumber, kSize},        // clockRate
    {AT(multiProcessorCount), AT(integrated), kNumber, kNumber},         // deviceOverlap
    {AT(integrated), AT(maxTexture1D), kNumber, kNumber},                // kernelExecTimeoutEnabled
    {AT(maxTexture1D), AT(maxTexture2D), kNumber, kNumber},              // computeMode
    // maxTexture1DLinear
    {AT(maxTexture2D), AT(maxSurfaceCubemapLayered) + 2 * kNumber, kNumber, kNumber},
    {AT(surfaceAlignment), AT(memoryBusWidth), 0, kSize},
    {AT(memoryBusWidth), AT(localL1CacheSupported) + kNumber, kNumber, kNumber},  // memoryClockRate
    {AT(sharedMemPerMultiprocessor), AT(pageableMemoryAccess), 0, kSize},
    // singleToDoublePrecisionPerfRatio
    {AT(pageableMemoryAccess), AT(cooperativeLaunch) + kNumber, kNumber, kNumber},
    // cooperativeMultiDeviceLaunch
    {AT(sharedMemPerBlockOptin), AT(deviceNumaConfig), kNumber, kSize},
};
constexpr std::size_t kReserved = 63 * sizeof(int);

}  // namespace

extern "C" cudaError_t cudaGetDeviceProperties_v2(void* properties, int device) {
    SIMULATED();
    if (properties == nullptr) return remember(cudaErrorInvalidValue);
    cudaDeviceProp known;
    if (const cudaError_t error = cudaGetDeviceProperties(&known, device)) return error;
    auto* const to = static_cast<char*>(properties);
    std::size_t place = 0;
    for (const auto& [begin, end, before, alignment] : kRuns) {
        const std::size_t next = (place + before + alignment - 1) / alignment * alignment;
        std::memset(to + place, 0, next - place);
        std::memcpy(to + next, reinterpret_cast<const char*>(&known) + begin, end - begin);
        place = next + end - begin;
    }
    std::memset(to + place, 0, kReserved);
    return cudaSuccess;
}

#endif
