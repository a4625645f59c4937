// Launches: checked against the card and the kernel's code as the driver does, and counted.
//
// Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
#include <climits>
#include <cstring>

#include <cuda_occupancy.h>

#include "compute.h"
#include "memory.h"
#include "modules.h"

namespace simulator {

namespace {

constexpr std::uint64_t kDefaultShared = 48 << 10;  // without cudaFuncSetAttribute
// Blocks of a cluster: 8 on every card that has clusters, 16 on some where the kernel allows it
// (Blackwell Tuning Guide, "Thread Block Clusters"; seen on an H100 with driver 580.159.04).
constexpr int kPortableCluster = 8, kLargestCluster = 16;
constexpr unsigned kGridYZ = 65535, kBlockZ = 64;

std::uint64_t volume(const dim3& size) { return std::uint64_t{size.x} * size.y * size.z; }

std::string text(const dim3& size) {
    return std::to_string(size.x) + "x" + std::to_string(size.y) + "x" + std::to_string(size.z);
}

struct Finding {
    cudaError_t error = cudaSuccess;
    std::string why;
};

Finding check_size(const Launch& launch, const Card& card) {
    const std::uint64_t threads = volume(launch.block);
    if (volume(launch.grid) == 0 || threads == 0) {
        return {launch.size_error, "a grid of " + text(launch.grid) + " blocks of " +
                                       text(launch.block) + " threads: none"};
    }
    const auto most = static_cast<unsigned>(card.threads_per_block);
    if (threads > most || launch.block.x > most || launch.block.y > most ||
        launch.block.z > kBlockZ) {
        return {launch.size_error,
                "a block of " + std::to_string(threads) + " threads (" + text(launch.block) +
                    "); the card allows " + std::to_string(most) + " (" + text({most, most, kBlockZ}) +
                    ")"};
    }
    if (launch.grid.x > INT_MAX || launch.grid.y > kGridYZ || launch.grid.z > kGridYZ) {
        return {launch.size_error,
                "a grid of " + text(launch.grid) + " blocks; the card allows " +
                    text({INT_MAX, kGridYZ, kGridYZ})};
    }
    return {};
}

Finding check_shared(const Launch& launch, const Card& card, const Attributes& attributes) {
    const std::uint64_t all = attributes.shared + launch.shared;
    if (all > card.shared_per_block_optin) {
        return {cudaErrorInvalidValue,
                std::to_string(all) + " bytes of shared memory (" +
                    std::to_string(attributes.shared) + " of them static); the card allows " +
                    std::to_string(card.shared_per_block_optin)};
    }
    const std::uint64_t allowed = dynamic_shared_limit(launch.kernel, launch.card);
    if (launch.shared > allowed) {
        return {cudaErrorInvalidValue,
                std::to_string(launch.shared) + " bytes of dynamic shared memory; " +
                    std::to_string(allowed) +
                    " are allowed before cudaFuncSetAttribute raises it"};
    }
    return {};
}

cudaOccDeviceProp occupancy_card(const Card& card) {
    cudaOccDeviceProp properties;
    properties.computeMajor = card.major;
    properties.computeMinor = card.minor;
    properties.maxThreadsPerBlock = card.threads_per_block;
    properties.maxThreadsPerMultiprocessor = card.threads_per_multiprocessor;
    properties.regsPerBlock = card.registers_per_block;
    properties.regsPerMultiprocessor = card.registers_per_multiprocessor;
    properties.warpSize = 32;
    properties.sharedMemPerBlock = card.shared_per_block;
    properties.sharedMemPerMultiprocessor = card.shared_per_multiprocessor;
    properties.numSms = card.multiprocessors;
    properties.sharedMemPerBlockOptin = card.shared_per_block_optin;
    properties.reservedSharedMemPerBlock =
        card.shared_per_multiprocessor - card.shared_per_block_optin;
    return properties;
}

// NVIDIA's own arithmetic (cuda_occupancy.h).
bool occupancy(const Card& card, const Attributes& attributes, int threads, std::uint64_t dynamic,
               cudaOccResult* result) {
    const cudaOccDeviceProp properties = occupancy_card(card);
    cudaOccFuncAttributes function;
    function.maxThreadsPerBlock = attributes.threads == 0 ? INT_MAX : attributes.threads;
    function.numRegs = attributes.registers;
    function.sharedSizeBytes = attributes.shared;
    function.partitionedGCConfig = PARTITIONED_GC_OFF;
    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = card.shared_per_block_optin - attributes.shared;
    const cudaOccDeviceState state;
    return cudaOccMaxActiveBlocksPerMultiprocessor(result, &properties, &function, &state, threads,
                                                   dynamic) == CUDA_OCC_SUCCESS;
}

Finding check_registers(const Launch& launch, const Card& card, const Attributes& attributes) {
    const auto threads = static_cast<int>(volume(launch.block));
    // The error that was seen: facebookresearch/TensorComprehensions#526, and driver 580.159.04.
    if (attributes.threads != 0 && threads > attributes.threads) {
        return {cudaErrorInvalidValue, "a block of " + std::to_string(threads) +
                                           " threads; the kernel was compiled for " +
                                           std::to_string(attributes.threads)};
    }
    // A warp's registers are allocated in units of 256, and each of the four parts of a
    // multiprocessor holds a quarter of the warps: cuda_occupancy.h knows both.
    cudaOccResult result;
    if (attributes.registers == 0 || !occupancy(card, attributes, threads, launch.shared, &result) ||
        result.blockLimitRegs > 0) {
        return {};
    }
    return {cudaErrorLaunchOutOfResources,
            std::to_string(attributes.registers) + " registers for each of " +
                std::to_string(threads) + " threads; a block may have " +
                std::to_string(card.registers_per_block)};
}

Finding check_cluster(const Launch& launch, const Card& card, const Attributes& attributes) {
    const dim3& cluster = launch.cluster;
    std::uint64_t blocks = volume(cluster);
    if (blocks != 0 && (launch.grid.x % cluster.x != 0 || launch.grid.y % cluster.y != 0 ||
                        launch.grid.z % cluster.z != 0)) {
        return {cudaErrorInvalidClusterSize, "clusters of " + text(cluster) +
                                                 " blocks do not divide the grid of " +
                                                 text(launch.grid)};
    }
    if (blocks == 0) blocks = static_cast<std::uint64_t>(attributes.cluster);  // __cluster_dims__
    if (blocks <= 1) return {};
    if (volume(launch.grid) % blocks != 0) {
        return {cudaErrorInvalidClusterSize, "clusters of " + std::to_string(blocks) +
                                                 " blocks do not divide the grid of " +
                                                 text(launch.grid)};
    }
    if (card.major < 9) {
        return {cudaErrorInvalidClusterSize,
                "clusters need compute capability 9.0; the card has " + std::to_string(card.major) +
                    "." + std::to_string(card.minor)};
    }
    const int most = cluster_limit(launch.kernel, launch.card);
    if (blocks <= static_cast<std::uint64_t>(most)) return {};
    const bool portable = most == kPortableCluster;
    return {cudaErrorInvalidClusterSize,
            "a cluster of " + std::to_string(blocks) + " blocks; " + std::to_string(most) +
                " are allowed" +
                (portable ? " without the attribute NonPortableClusterSizeAllowed" : "")};
}

Finding check_cooperative(const Launch& launch, const Card& card, const Attributes& attributes) {
    if (!launch.cooperative) return {};
    cudaOccResult result;
    const auto threads = static_cast<int>(volume(launch.block));
    if (!occupancy(card, attributes, threads, launch.shared, &result)) return {};
    const std::uint64_t most = std::uint64_t(result.activeBlocksPerMultiprocessor) *
                               static_cast<std::uint64_t>(card.multiprocessors);
    if (volume(launch.grid) <= most) return {};
    return {cudaErrorCooperativeLaunchTooLarge,
            "a cooperative grid of " + std::to_string(volume(launch.grid)) +
                " blocks; the card holds " + std::to_string(most) + " of them at once"};
}

Finding check(const Launch& launch, const Attributes& attributes) {
    const Card& card = cards()[launch.card];
    Finding found = check_size(launch, card);
    if (found.error == cudaSuccess) found = check_shared(launch, card, attributes);
    if (found.error == cudaSuccess) found = check_registers(launch, card, attributes);
    if (found.error == cudaSuccess) found = check_cluster(launch, card, attributes);
    if (found.error == cudaSuccess) found = check_cooperative(launch, card, attributes);
    return found;
}

}  // namespace

cudaError_t check_launch(Launch& launch, void* const* each, void* const* extra) {
    if (launch.kernel == nullptr) {
        violate("", cudaErrorInvalidDeviceFunction, "a launch of a function that is not registered",
                launch.grid, launch.block, launch.shared);
        return cudaErrorInvalidDeviceFunction;
    }
    Attributes attributes;
    if (const cudaError_t error = kernel_attributes(launch.kernel, launch.card, &attributes)) {
        return error;
    }
    Finding found;
    {
        const Lock lock(mutex());
        found = check(launch, attributes);
    }
    if (found.error == cudaSuccess) {
        return computes() ? take_arguments(launch, each, extra) : cudaSuccess;
    }
    violate(launch.kernel->name, found.error, found.why, launch.grid, launch.block, launch.shared);
    return found.error;
}

void count_launch(const Launch& launch) {
    const Lock lock(mutex());
    LaunchCount& count = facts().launches[{launch.kernel, launch.card}];
    if (count.count++ == 0) {
        const Module& module = *launch.kernel->module;
        count.kernel = launch.kernel->name;
        count.file = module.file;
        count.code = module.code == nullptr ? "unknown" : module.code->code;
        count.card = launch.card;
    }
    if (volume(launch.grid) > volume(count.grid)) count.grid = launch.grid;
    if (volume(launch.block) > volume(count.block)) count.block = launch.block;
    if (launch.shared > count.shared) count.shared = launch.shared;
    if (config().launches_write && !computes()) forget_all_contents();
    changed();
}

std::uint64_t dynamic_shared_limit(Kernel* kernel, int card) {
    const Lock lock(mutex());
    const auto found = kernel->dynamic_shared.find(card);
    if (found != kernel->dynamic_shared.end()) return found->second;
    const std::uint64_t taken = kernel->attributes.shared;
    return taken > kDefaultShared ? 0 : kDefaultShared - taken;
}

cudaError_t set_dynamic_shared_limit(Kernel* kernel, int card, std::uint64_t size) {
    Attributes attributes;
    if (const cudaError_t error = kernel_attributes(kernel, card, &attributes)) return error;
    const Lock lock(mutex());
    const std::uint64_t most = cards()[card].shared_per_block_optin;
    // No violation: TurboMind asks for all its kernels, and chooses among those that fit the card.
    if (attributes.shared + size > most) return cudaErrorInvalidValue;
    kernel->dynamic_shared[card] = size;
    return cudaSuccess;
}

void set_nonportable_cluster(Kernel* kernel, bool allowed) {
    const Lock lock(mutex());
    kernel->nonportable_cluster = allowed;
}

int cluster_limit(const Kernel* kernel, int card) {
    const Lock lock(mutex());
    if (cards()[card].major < 9) return 1;
    return kernel->nonportable_cluster ? kLargestCluster : kPortableCluster;
}

cudaError_t resident_blocks(Kernel* kernel, int card, int threads, std::uint64_t dynamic_shared,
                            int* blocks) {
    Attributes attributes;
    if (const cudaError_t error = kernel_attributes(kernel, card, &attributes)) return error;
    cudaOccResult result;
    if (threads <= 0 || !occupancy(cards()[card], attributes, threads, dynamic_shared, &result)) {
        return cudaErrorInvalidValue;
    }
    *blocks = result.activeBlocksPerMultiprocessor;
    return cudaSuccess;
}

void violate(const std::string& kernel, cudaError_t error, const std::string& why, const dim3& grid,
             const dim3& block, std::uint64_t shared) {
    add_violation({kernel, error_name(error), why, grid, block, shared});
}

int driver_error(cudaError_t error) {
    switch (error) {  // cuda.h: the numbers that differ
        case cudaErrorInvalidPitchValue: return 1;        // CUDA_ERROR_INVALID_VALUE
        case cudaErrorInvalidDeviceFunction: return 500;  // CUDA_ERROR_NOT_FOUND
        default: return error;
    }
}

}  // namespace simulator

// For programs: an operation whose kernel cannot be computed, and which they compute themselves on the
// card's memory. It counts as a launch that was not computed.
extern "C" SIMULATOR_API void simulator_done_by_program(const char* operation) {
    using namespace simulator;
    static const Code code{.code = "none of the card's"};
    static Module* const module = [] {
        Module* const made = register_module("");
        made->file = "computed by the program";
        made->code = &code;
        return made;
    }();
    count_launch({.kernel = register_kernel(module, nullptr, operation), .card = current_card()});
}
