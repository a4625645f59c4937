// libcudart: what a card says about itself.
#include <cstdio>
#include <cstring>

#include "attributes.h"
#include "cudart.h"

using namespace simulator;

namespace {

template <typename Number>
struct Field {
    Number cudaDeviceProp::* field;
    cudaDeviceAttr attribute;
};

using P = cudaDeviceProp;

constexpr Field<int> kNumbers[] = {
    {&P::major, cudaDevAttrComputeCapabilityMajor},
    {&P::minor, cudaDevAttrComputeCapabilityMinor},
    {&P::multiProcessorCount, cudaDevAttrMultiProcessorCount},
    {&P::memoryBusWidth, cudaDevAttrGlobalMemoryBusWidth},
    {&P::l2CacheSize, cudaDevAttrL2CacheSize},
    {&P::persistingL2CacheMaxSize, cudaDevAttrMaxPersistingL2CacheSize},
    {&P::accessPolicyMaxWindowSize, cudaDevAttrMaxAccessPolicyWindowSize},
    {&P::regsPerBlock, cudaDevAttrMaxRegistersPerBlock},
    {&P::regsPerMultiprocessor, cudaDevAttrMaxRegistersPerMultiprocessor},
    {&P::warpSize, cudaDevAttrWarpSize},
    {&P::maxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock},
    {&P::maxThreadsPerMultiProcessor, cudaDevAttrMaxThreadsPerMultiProcessor},
    {&P::maxBlocksPerMultiProcessor, cudaDevAttrMaxBlocksPerMultiprocessor},
    {&P::integrated, cudaDevAttrIntegrated},
    {&P::canMapHostMemory, cudaDevAttrCanMapHostMemory},
    {&P::concurrentKernels, cudaDevAttrConcurrentKernels},
    {&P::ECCEnabled, cudaDevAttrEccEnabled},
    {&P::pciBusID, cudaDevAttrPciBusId},
    {&P::pciDeviceID, cudaDevAttrPciDeviceId},
    {&P::pciDomainID, cudaDevAttrPciDomainId},
    {&P::asyncEngineCount, cudaDevAttrAsyncEngineCount},
    {&P::unifiedAddressing, cudaDevAttrUnifiedAddressing},
    {&P::streamPrioritiesSupported, cudaDevAttrStreamPrioritiesSupported},
    {&P::globalL1CacheSupported, cudaDevAttrGlobalL1CacheSupported},
    {&P::localL1CacheSupported, cudaDevAttrLocalL1CacheSupported},
    {&P::managedMemory, cudaDevAttrManagedMemory},
    {&P::isMultiGpuBoard, cudaDevAttrIsMultiGpuBoard},
    {&P::multiGpuBoardGroupID, cudaDevAttrMultiGpuBoardGroupID},
    {&P::hostNativeAtomicSupported, cudaDevAttrHostNativeAtomicSupported},
    {&P::pageableMemoryAccess, cudaDevAttrPageableMemoryAccess},
    {&P::concurrentManagedAccess, cudaDevAttrConcurrentManagedAccess},
    {&P::computePreemptionSupported, cudaDevAttrComputePreemptionSupported},
    {&P::canUseHostPointerForRegisteredMem, cudaDevAttrCanUseHostPointerForRegisteredMem},
    {&P::cooperativeLaunch, cudaDevAttrCooperativeLaunch},
    {&P::hostRegisterSupported, cudaDevAttrHostRegisterSupported},
    {&P::hostRegisterReadOnlySupported, cudaDevAttrHostRegisterReadOnlySupported},
    {&P::timelineSemaphoreInteropSupported, cudaDevAttrTimelineSemaphoreInteropSupported},
    {&P::memoryPoolsSupported, cudaDevAttrMemoryPoolsSupported},
    {&P::ipcEventSupported, cudaDevAttrIpcEventSupport},
    {&P::clusterLaunch, cudaDevAttrClusterLaunch},
    {&P::deviceNumaId, cudaDevAttrNumaId},
    {&P::hostNumaId, cudaDevAttrHostNumaId},
};

constexpr Field<std::size_t> kSizes[] = {
    {&P::sharedMemPerBlock, cudaDevAttrMaxSharedMemoryPerBlock},
    {&P::sharedMemPerBlockOptin, cudaDevAttrMaxSharedMemoryPerBlockOptin},
    {&P::sharedMemPerMultiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor},
    {&P::reservedSharedMemPerBlock, cudaDevAttrReservedSharedMemoryPerBlock},
    {&P::memPitch, cudaDevAttrMaxPitch},
    {&P::totalConstMem, cudaDevAttrTotalConstantMemory},
    {&P::textureAlignment, cudaDevAttrTextureAlignment},
    {&P::texturePitchAlignment, cudaDevAttrTexturePitchAlignment},
    {&P::surfaceAlignment, cudaDevAttrSurfaceAlignment},
};

int attribute_of(const Card& card, int attribute) {
    int value = 0;
    card_attribute(card.index, attribute, &value);
    return value;
}

cudaDeviceProp properties_of(const Card& card) {
    cudaDeviceProp properties = {};
    std::snprintf(properties.name, sizeof properties.name, "%s", card.name.c_str());
    unsigned char uuid[sizeof properties.uuid.bytes];
    card_uuid(card.index, uuid);
    std::memcpy(properties.uuid.bytes, uuid, sizeof uuid);
    properties.totalGlobalMem = card.memory;
    for (const auto& [field, attribute] : kNumbers) properties.*field = attribute_of(card, attribute);
    for (const auto& [field, attribute] : kSizes) {
        properties.*field = static_cast<std::size_t>(attribute_of(card, attribute));
    }
    for (int i = 0; i < 3; ++i) {
        properties.maxThreadsDim[i] = attribute_of(card, cudaDevAttrMaxBlockDimX + i);
        properties.maxGridSize[i] = attribute_of(card, cudaDevAttrMaxGridDimX + i);
    }
    return properties;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    SIMULATED();
    if (properties == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = cudart::check_device(device)) return remember(error);
    *properties = properties_of(cards()[device]);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    SIMULATED();
    if (const cudaError_t error = cudart::check_device(device)) return remember(error);
    return remember(card_attribute(device, attribute, value));
}

}  // extern "C"
