// libcudart: launches, what kernels say about themselves, occupancy.
#include <algorithm>
#include <climits>

#include "cudart.h"

using namespace simulator;

namespace {

cudaError_t launch_kernel(const void* function, dim3 grid, dim3 block, void** arguments,
                          std::size_t shared, cudaStream_t stream, bool cooperative = false) {
    if (const cudaError_t error = use_card(current_card())) return error;
    return launch({.kernel = find_kernel(function),
                   .card = current_card(),
                   .grid = grid,
                   .block = block,
                   .shared = shared,
                   .cooperative = cooperative,
                   .size_error = cudart::size_error()},
                  arguments, nullptr, stream);
}

// The launch that cudaLaunchKernelExC's configuration asks for.
Launch launch_of(const cudaLaunchConfig_t& config, const void* function) {
    Launch launch{.kernel = find_kernel(function),
                  .card = current_card(),
                  .grid = config.gridDim,
                  .block = config.blockDim,
                  .shared = config.dynamicSmemBytes,
                  .size_error = cudart::size_error()};
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        const cudaLaunchAttribute& attribute = config.attrs[i];
        if (attribute.id == cudaLaunchAttributeCooperative) {
            launch.cooperative = attribute.val.cooperative != 0;
        } else if (attribute.id == cudaLaunchAttributeClusterDimension) {
            const auto& cluster = attribute.val.clusterDim;
            launch.cluster = {cluster.x, cluster.y, cluster.z};
        } else if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
            launch.dependent = attribute.val.programmaticStreamSerializationAllowed != 0;
        }
    }
    return launch;
}

cudaError_t attributes_of(const void* function, cudaFuncAttributes* out) {
    Kernel* const kernel = find_kernel(function);
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    const int card = current_card();
    Attributes known;
    if (const cudaError_t error = kernel_attributes(kernel, card, &known)) return error;
    const Card& on = cards()[card];
    *out = {};
    out->sharedSizeBytes = known.shared;
    out->localSizeBytes = known.local;
    out->numRegs = known.registers;
    out->binaryVersion = known.binary_version;
    out->ptxVersion = known.ptx_version;
    out->maxDynamicSharedSizeBytes = static_cast<int>(dynamic_shared_limit(kernel, card));
    out->preferredShmemCarveout = -1;
    // Limited by the kernel's registers, in whole warps, and by what it was compiled for.
    int threads = on.threads_per_block;
    for (int blocks = 0; threads > cudart::kWarp; threads -= cudart::kWarp) {
        if (resident_blocks(kernel, card, threads, 0, &blocks) == cudaSuccess && blocks > 0) break;
    }
    out->maxThreadsPerBlock = known.threads == 0 ? threads : std::min(threads, known.threads);
    return cudaSuccess;
}

cudaError_t set_attribute(Kernel* kernel, int card, cudaFuncAttribute attribute, int value) {
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    switch (attribute) {
        case cudaFuncAttributeMaxDynamicSharedMemorySize:
            if (value < 0) return cudaErrorInvalidValue;
            return set_dynamic_shared_limit(kernel, card, static_cast<std::uint64_t>(value));
        case cudaFuncAttributeNonPortableClusterSizeAllowed:
            set_nonportable_cluster(kernel, value != 0);
            return cudaSuccess;
        case cudaFuncAttributePreferredSharedMemoryCarveout:
            return value < -1 || value > 100 ? cudaErrorInvalidValue : cudaSuccess;
        case cudaFuncAttributeClusterDimMustBeSet:
        case cudaFuncAttributeRequiredClusterWidth:
        case cudaFuncAttributeRequiredClusterHeight:
        case cudaFuncAttributeRequiredClusterDepth:
        case cudaFuncAttributeClusterSchedulingPolicyPreference: return cudaSuccess;
        default: return cudaErrorInvalidValue;
    }
}

cudaError_t blocks_of(int* blocks, const void* function, int threads, std::size_t shared) {
    Kernel* const kernel = find_kernel(function);
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    if (blocks == nullptr) return cudaErrorInvalidValue;
    return resident_blocks(kernel, current_card(), threads, shared, blocks);
}

}  // namespace

// Weak: libcudart.so.12 has its own.
__attribute__((weak)) cudaError_t cudart::size_error() { return cudaErrorInvalidValue; }

extern "C" {

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared, cudaStream_t stream) {
    SIMULATED();
    return remember(launch_kernel(function, grid, block, arguments, shared, stream));
}

__attribute__((visibility("default"))) cudaError_t __cudaLaunchKernel(
    cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared, cudaStream_t stream) {
    SIMULATED();
    return remember(launch_kernel(kernel, grid, block, arguments, shared, stream));
}

// Where the default stream is the thread's own (device_functions.h).
__attribute__((visibility("default"))) cudaError_t __cudaLaunchKernel_ptsz(
    cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared, cudaStream_t stream) {
    SIMULATED();
    return remember(launch_kernel(kernel, grid, block, arguments, shared, stream));
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        std::size_t shared, cudaStream_t stream) {
    SIMULATED();
    return remember(launch_kernel(function, grid, block, arguments, shared, stream, true));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                 void** arguments) {
    SIMULATED();
    if (config == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = use_card(current_card())) return remember(error);
    return remember(launch(launch_of(*config, function), arguments, nullptr, config->stream));
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
    SIMULATED();
    if (attributes == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = use_card(current_card())) return remember(error);
    return remember(attributes_of(function, attributes));
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
    SIMULATED();
    if (const cudaError_t error = use_card(current_card())) return remember(error);
    return remember(set_attribute(find_kernel(function), current_card(), attribute, value));
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute,
                                            int value, int device) {
    SIMULATED();
    if (const cudaError_t error = cudart::check_device(device)) return remember(error);
    return remember(set_attribute(find_kernel(kernel), device, attribute, value));
}

cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
    SIMULATED();
    return remember(find_kernel(function) == nullptr ? cudaErrorInvalidDeviceFunction
                                                     : cudaSuccess);
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
    SIMULATED();
    const Kernel* const kernel = find_kernel(function);
    if (name == nullptr) return remember(cudaErrorInvalidValue);
    if (kernel == nullptr) return remember(cudaErrorInvalidDeviceFunction);
    *name = kernel_name(kernel);
    return cudaSuccess;
}

cudaError_t cudaGetKernel(cudaKernel_t* handle, const void* function) {
    SIMULATED();
    if (handle == nullptr) return remember(cudaErrorInvalidValue);
    *handle = reinterpret_cast<cudaKernel_t>(find_kernel(function));
    return remember(*handle == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess);
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* handle, const void* function) {
    SIMULATED();
    if (handle == nullptr) return remember(cudaErrorInvalidValue);
    *handle = reinterpret_cast<cudaFunction_t>(find_kernel(function));
    return remember(*handle == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int threads, std::size_t shared) {
    SIMULATED();
    if (const cudaError_t error = use_card(current_card())) return remember(error);
    return remember(blocks_of(blocks, function, threads, shared));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                   const void* function,
                                                                   int threads, std::size_t shared,
                                                                   unsigned) {
    SIMULATED();
    if (const cudaError_t error = use_card(current_card())) return remember(error);
    return remember(blocks_of(blocks, function, threads, shared));
}

// What is left for each of `blocks` blocks on one multiprocessor.
cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(std::size_t* shared, const void* function,
                                                      int blocks, int threads) {
    SIMULATED();
    if (const cudaError_t error = use_card(current_card())) return remember(error);
    if (shared == nullptr || blocks <= 0) return remember(cudaErrorInvalidValue);
    const std::uint64_t most = cards()[current_card()].shared_per_block_optin;
    for (std::uint64_t size = most / 256 * 256;; size -= 256) {
        int fit = 0;
        if (const cudaError_t error = blocks_of(&fit, function, threads, size)) {
            return remember(error);
        }
        *shared = size;
        if (fit >= blocks || size == 0) return cudaSuccess;
    }
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* function,
                                                 const cudaLaunchConfig_t*) {
    SIMULATED();
    if (size == nullptr) return remember(cudaErrorInvalidValue);
    const Kernel* const kernel = find_kernel(function);
    if (kernel == nullptr) return remember(cudaErrorInvalidDeviceFunction);
    *size = cluster_limit(kernel, current_card());
    return cudaSuccess;
}

// As many clusters as all multiprocessors together hold; where they must share a cluster of
// multiprocessors is not known.
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                           const cudaLaunchConfig_t* config) {
    SIMULATED();
    if (clusters == nullptr || config == nullptr) return remember(cudaErrorInvalidValue);
    const Launch launch = launch_of(*config, function);
    const auto threads = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
    int blocks = 0;
    if (const cudaError_t error = blocks_of(&blocks, function, threads, launch.shared)) {
        return remember(error);
    }
    const unsigned size = std::max(1U, launch.cluster.x * launch.cluster.y * launch.cluster.z);
    *clusters = blocks * cards()[current_card()].multiprocessors / static_cast<int>(size);
    return cudaSuccess;
}

}  // extern "C"
