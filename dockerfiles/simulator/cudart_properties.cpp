// libcudart: what a card says about itself.
//
// What is not in the card's data is the same on every card that is simulated: CUDA C++ Programming
// Guide, "Technical Specifications per Compute Capability" (7.5 and later).
#include <climits>
#include <cstdio>
#include <cstring>

#include <cuda_occupancy.h>

#include "cudart.h"

using namespace simulator;

namespace cudart {

namespace {

int most_blocks(const Card& card) {
    cudaOccDeviceProp properties;
    properties.computeMajor = card.major;
    properties.computeMinor = card.minor;
    int blocks = 0;
    cudaOccMaxBlocksPerMultiprocessor(&blocks, &properties);
    return blocks;
}

void set_limits(const Card& card, cudaDeviceProp& properties) {
    properties.sharedMemPerBlock = card.shared_per_block;
    properties.sharedMemPerBlockOptin = card.shared_per_block_optin;
    properties.sharedMemPerMultiprocessor = card.shared_per_multiprocessor;
    properties.reservedSharedMemPerBlock =
        card.shared_per_multiprocessor - card.shared_per_block_optin;
    properties.regsPerBlock = card.registers_per_block;
    properties.regsPerMultiprocessor = card.registers_per_multiprocessor;
    properties.warpSize = kWarp;
    properties.maxThreadsPerBlock = card.threads_per_block;
    properties.maxThreadsPerMultiProcessor = card.threads_per_multiprocessor;
    properties.maxBlocksPerMultiProcessor = most_blocks(card);
    properties.maxThreadsDim[0] = properties.maxThreadsDim[1] = card.threads_per_block;
    properties.maxThreadsDim[2] = 64;
    properties.maxGridSize[0] = INT_MAX;
    properties.maxGridSize[1] = properties.maxGridSize[2] = 65535;
    properties.totalConstMem = 64 << 10;
    properties.memPitch = INT_MAX;
    properties.textureAlignment = properties.surfaceAlignment = 512;
    properties.texturePitchAlignment = 32;
}

void set_features(const Card& card, cudaDeviceProp& properties) {
    properties.canMapHostMemory = 1;
    properties.concurrentKernels = 1;
    properties.asyncEngineCount = 2;
    properties.unifiedAddressing = 1;
    properties.streamPrioritiesSupported = 1;
    properties.globalL1CacheSupported = properties.localL1CacheSupported = 1;
    properties.managedMemory = properties.concurrentManagedAccess = 1;
    properties.computePreemptionSupported = 1;
    properties.canUseHostPointerForRegisteredMem = 1;
    properties.cooperativeLaunch = 1;
    properties.hostRegisterSupported = properties.hostRegisterReadOnlySupported = 1;
    properties.memoryPoolsSupported = 1;
    properties.timelineSemaphoreInteropSupported = 1;
    properties.unifiedFunctionPointers = 1;
    properties.clusterLaunch = card.major >= 9 ? 1 : 0;
    properties.hostNumaId = -1;
    properties.deviceNumaId = -1;
}

}  // namespace

cudaDeviceProp properties(const Card& card) {
    cudaDeviceProp properties = {};
    std::snprintf(properties.name, sizeof properties.name, "%s", card.name.c_str());
    std::snprintf(properties.uuid.bytes, sizeof properties.uuid.bytes, "simulated %d", card.index);
    properties.totalGlobalMem = card.memory;
    properties.major = card.major;
    properties.minor = card.minor;
    properties.multiProcessorCount = card.multiprocessors;
    properties.memoryBusWidth = card.bus_width;
    properties.l2CacheSize = static_cast<int>(card.l2);
    properties.pciBusID = card.index + 1;
    set_limits(card, properties);
    set_features(card, properties);
    return properties;
}

namespace {

// -1: not an attribute that is simulated.
int limit(cudaDeviceAttr attribute, const cudaDeviceProp& card) {
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: return card.maxThreadsPerBlock;
        case cudaDevAttrMaxBlockDimX: return card.maxThreadsDim[0];
        case cudaDevAttrMaxBlockDimY: return card.maxThreadsDim[1];
        case cudaDevAttrMaxBlockDimZ: return card.maxThreadsDim[2];
        case cudaDevAttrMaxGridDimX: return card.maxGridSize[0];
        case cudaDevAttrMaxGridDimY: return card.maxGridSize[1];
        case cudaDevAttrMaxGridDimZ: return card.maxGridSize[2];
        case cudaDevAttrMaxSharedMemoryPerBlock: return static_cast<int>(card.sharedMemPerBlock);
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            return static_cast<int>(card.sharedMemPerBlockOptin);
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            return static_cast<int>(card.sharedMemPerMultiprocessor);
        case cudaDevAttrReservedSharedMemoryPerBlock:
            return static_cast<int>(card.reservedSharedMemPerBlock);
        case cudaDevAttrTotalConstantMemory: return static_cast<int>(card.totalConstMem);
        case cudaDevAttrWarpSize: return card.warpSize;
        case cudaDevAttrMaxPitch: return static_cast<int>(card.memPitch);
        case cudaDevAttrMaxRegistersPerBlock: return card.regsPerBlock;
        case cudaDevAttrMaxRegistersPerMultiprocessor: return card.regsPerMultiprocessor;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return card.maxThreadsPerMultiProcessor;
        case cudaDevAttrMaxBlocksPerMultiprocessor: return card.maxBlocksPerMultiProcessor;
        case cudaDevAttrTextureAlignment: return static_cast<int>(card.textureAlignment);
        case cudaDevAttrSurfaceAlignment: return static_cast<int>(card.surfaceAlignment);
        case cudaDevAttrTexturePitchAlignment:
            return static_cast<int>(card.texturePitchAlignment);
        case cudaDevAttrMultiProcessorCount: return card.multiProcessorCount;
        case cudaDevAttrGlobalMemoryBusWidth: return card.memoryBusWidth;
        case cudaDevAttrL2CacheSize: return card.l2CacheSize;
        case cudaDevAttrAsyncEngineCount: return card.asyncEngineCount;
        case cudaDevAttrComputeCapabilityMajor: return card.major;
        case cudaDevAttrComputeCapabilityMinor: return card.minor;
        case cudaDevAttrPciBusId: return card.pciBusID;
        case cudaDevAttrSingleToDoublePrecisionPerfRatio: return 64;
        case cudaDevAttrMemSyncDomainCount: return card.major >= 9 ? 4 : 1;
        case cudaDevAttrNumaId:
        case cudaDevAttrHostNumaId: return -1;
        default: return -1;
    }
}

bool has(cudaDeviceAttr attribute, const cudaDeviceProp& card) {
    switch (attribute) {
        case cudaDevAttrGpuOverlap:
        case cudaDevAttrCanMapHostMemory:
        case cudaDevAttrConcurrentKernels:
        case cudaDevAttrUnifiedAddressing:
        case cudaDevAttrStreamPrioritiesSupported:
        case cudaDevAttrGlobalL1CacheSupported:
        case cudaDevAttrLocalL1CacheSupported:
        case cudaDevAttrManagedMemory:
        case cudaDevAttrConcurrentManagedAccess:
        case cudaDevAttrComputePreemptionSupported:
        case cudaDevAttrCanUseHostPointerForRegisteredMem:
        case cudaDevAttrCooperativeLaunch:
        case cudaDevAttrHostRegisterSupported:
        case cudaDevAttrHostRegisterReadOnlySupported:
        case cudaDevAttrTimelineSemaphoreInteropSupported:
        case cudaDevAttrMemoryPoolsSupported: return true;
        case cudaDevAttrClusterLaunch: return card.clusterLaunch != 0;
        default: return false;
    }
}

}  // namespace

}  // namespace cudart

extern "C" {

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    SIMULATED();
    if (properties == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = cudart::check_device(device)) return remember(error);
    *properties = cudart::properties(cards()[device]);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    SIMULATED();
    if (value == nullptr || attribute < 1 || attribute >= cudaDevAttrMax) {
        return remember(cudaErrorInvalidValue);
    }
    if (const cudaError_t error = cudart::check_device(device)) return remember(error);
    const Card& card = cards()[device];
    const cudaDeviceProp properties = cudart::properties(card);
    const int limit = cudart::limit(attribute, properties);
    if (attribute == cudaDevAttrClockRate) {
        *value = card.clock_khz;
    } else if (attribute == cudaDevAttrMemoryClockRate) {
        *value = card.memory_clock_khz;
    } else if (attribute == cudaDevAttrNumaId || attribute == cudaDevAttrHostNumaId || limit >= 0) {
        *value = limit;
    } else {
        *value = cudart::has(attribute, properties) ? 1 : 0;
    }
    return cudaSuccess;
}

}  // extern "C"
