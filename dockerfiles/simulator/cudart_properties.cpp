// libcudart: what a card says about itself.
//
// What is not in the card's data is the same on every card that is simulated: CUDA C++ Programming
// Guide, "Technical Specifications per Compute Capability" (7.5 and later).
#include <climits>
#include <cstdio>
#include <cstring>

#include "attributes.h"
#include "cudart.h"

using namespace simulator;

namespace cudart {

namespace {

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
    properties.maxBlocksPerMultiProcessor = blocks_per_multiprocessor(card);
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
    card_uuid(card.index, reinterpret_cast<unsigned char*>(properties.uuid.bytes));
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
    if (const cudaError_t error = cudart::check_device(device)) return remember(error);
    return remember(card_attribute(device, attribute, value));
}

}  // extern "C"
