// What a card answers about itself: from its data, or what is common to all cards since Ampere.
#include "attributes.h"

#include <cuda.h>
#include <cuda_occupancy.h>

#include <cstdio>

#include "internal.h"

namespace simulator {

namespace {

struct Value {
    CUdevice_attribute attribute;
    int value;
};

// The same on every GeForce card of compute capability 8.6 to 12.0: the table "Technical
// Specifications per Compute Capability" of the CUDA programming guide, and deviceQuery's output
// for an RTX 5090 (NVIDIA/nccl#1637).
constexpr Value kCommon[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 64},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, 134213632},
    {CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS, 2048},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048},
};

// What the card's data say; false: something else is asked for.
bool from_data(const Card& card, int attribute, int* value) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = card.threads_per_block; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = card.shared_per_block; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
            *value = card.shared_per_block_optin;
            break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
            *value = card.shared_per_multiprocessor;
            break;
        case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
            *value = card.shared_per_multiprocessor - card.shared_per_block_optin;
            break;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = card.registers_per_block; break;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
            *value = card.registers_per_multiprocessor;
            break;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
            *value = card.threads_per_multiprocessor;
            break;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
            *value = blocks_per_multiprocessor(card);
            break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = card.multiprocessors; break;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = card.clock_khz; break;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = card.memory_clock_khz; break;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = card.bus_width; break;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = card.l2; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = card.major; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = card.minor; break;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = card.index + 1; break;
        case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID: *value = card.index; break;
        case CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT: *value = card.major >= 9 ? 4 : 1; break;
        // Clusters and the tensor memory accelerator came with compute capability 9.0.
        case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED: *value = card.major >= 9; break;
        default: return false;
    }
    return true;
}

}  // namespace

cudaError_t card_attribute(int card, int attribute, int* value) {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (card < 0 || card >= static_cast<int>(cards().size())) return cudaErrorInvalidDevice;
    if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return cudaErrorInvalidValue;
    if (from_data(cards()[card], attribute, value)) return cudaSuccess;
    *value = 0;  // what these cards do not have, as ECC, NUMA, confidential computing
    for (const Value& common : kCommon) {
        if (common.attribute == attribute) *value = common.value;
    }
    return cudaSuccess;
}

int blocks_per_multiprocessor(const Card& card) {
    cudaOccDeviceProp properties;
    properties.computeMajor = card.major;
    properties.computeMinor = card.minor;
    int blocks = 0;
    cudaOccMaxBlocksPerMultiprocessor(&blocks, &properties);
    return blocks;
}

bool card_used(int card) {
    const Lock lock(mutex());
    return facts().cards[card].started;
}

std::string pci_address(int card) {
    char text[16];
    std::snprintf(text, sizeof text, "0000:%02x:00.0", card + 1);
    return text;
}

void card_uuid(int card, unsigned char uuid[16]) {
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (const char letter : cards()[card].name + std::to_string(card)) {
        hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
    }
    for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(hash >> (i % 8 * 8)) ^ i;
}

}  // namespace simulator
