// libcudart: cards: which there are, the current one, peers, limits.
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "attributes.h"
#include "cudart.h"

using namespace simulator;

namespace {

std::mutex lock;
std::set<std::pair<int, int>> peers;  // card, the other whose memory it may use
std::map<cudaLimit, std::size_t> limits = {
    {cudaLimitStackSize, 1024},
    {cudaLimitPrintfFifoSize, 1 << 20},
    {cudaLimitMallocHeapSize, 8 << 20},
    {cudaLimitDevRuntimePendingLaunchCount, 2048},
    {cudaLimitMaxL2FetchGranularity, 64},
    {cudaLimitPersistingL2CacheSize, 0},
};
thread_local unsigned device_flags = cudaDeviceScheduleAuto;

bool can_access(int device, int peer) {
    return device != peer && cards()[device].peer && cards()[peer].peer;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    SIMULATED();
    if (count == nullptr) return remember(cudaErrorInvalidValue);
    *count = static_cast<int>(cards().size());
    return remember(start());
}

cudaError_t cudaGetDevice(int* device) {
    SIMULATED();
    if (device == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = start()) return remember(error);
    *device = current_card();
    return cudaSuccess;
}

// Makes the card's context, which takes memory (since CUDA 12.0).
cudaError_t cudaSetDevice(int device) {
    SIMULATED();
    if (const cudaError_t error = set_current_card(device)) return remember(error);
    return remember(use_card(device));
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
    SIMULATED();
    if (const cudaError_t error = cudart::check_device(device)) return remember(error);
    return remember(use_card(device));
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    SIMULATED();
    device_flags = flags;
    return remember(start());
}

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
    SIMULATED();
    if (flags == nullptr) return remember(cudaErrorInvalidValue);
    *flags = device_flags | cudaDeviceMapHost;
    return remember(start());
}

cudaError_t cudaDeviceSynchronize() {
    SIMULATED();
    if (const cudaError_t error = use_card(current_card())) return remember(error);
    if (const cudaError_t error = check_unsafe_call()) return remember(error);
    synchronize_card(current_card());
    return cudaSuccess;
}

cudaError_t cudaDeviceReset() {
    SIMULATED();
    if (const cudaError_t error = start()) return remember(error);
    const int card = current_card();
    reset_card(card);
    const std::lock_guard guard(lock);
    std::erase_if(peers, [card](const auto& pair) {
        return pair.first == card || pair.second == card;
    });
    return cudaSuccess;
}

cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp* wanted) {
    SIMULATED();
    if (device == nullptr || wanted == nullptr) return remember(cudaErrorInvalidValue);
    *device = 0;
    return remember(start());
}

cudaError_t cudaSetValidDevices(int* devices, int count) {
    SIMULATED();
    for (int i = 0; i < count; ++i) {
        if (const cudaError_t error = cudart::check_device(devices[i])) return remember(error);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    SIMULATED();
    if (const cudaError_t error = cudart::check_device(device)) return remember(error);
    if (text == nullptr || size < 13) return remember(cudaErrorInvalidValue);
    std::snprintf(text, static_cast<std::size_t>(size), "%s", pci_address(device).c_str());
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
    SIMULATED();
    unsigned domain = 0, bus = 0, slot = 0;
    if (device == nullptr || text == nullptr) return remember(cudaErrorInvalidValue);
    const bool read = std::sscanf(text, "%x:%x:%x", &domain, &bus, &slot) == 3;
    if (!read || domain != 0 || slot != 0 || bus == 0 || bus > cards().size()) {
        return remember(cudaErrorInvalidDevice);
    }
    *device = static_cast<int>(bus) - 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    SIMULATED();
    if (can == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = cudart::check_devices(device, peer)) return remember(error);
    *can = can_access(device, peer) ? 1 : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    SIMULATED();
    const int device = current_card();
    if (flags != 0) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = cudart::check_devices(device, peer)) return remember(error);
    if (!can_access(device, peer)) return remember(cudaErrorPeerAccessUnsupported);
    const std::lock_guard guard(lock);
    const bool added = peers.insert({device, peer}).second;
    return remember(added ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    SIMULATED();
    const int device = current_card();
    if (const cudaError_t error = cudart::check_devices(device, peer)) return remember(error);
    const std::lock_guard guard(lock);
    const bool removed = peers.erase({device, peer}) != 0;
    return remember(removed ? cudaSuccess : cudaErrorPeerAccessNotEnabled);
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int device,
                                      int peer) {
    SIMULATED();
    if (value == nullptr || device == peer) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = cudart::check_devices(device, peer)) return remember(error);
    *value = attribute == cudaDevP2PAttrAccessSupported && can_access(device, peer) ? 1 : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit limit) {
    SIMULATED();
    const std::lock_guard guard(lock);
    const auto found = limits.find(limit);
    if (value == nullptr) return remember(cudaErrorInvalidValue);
    if (found == limits.end()) return remember(cudaErrorUnsupportedLimit);
    *value = found->second;
    return remember(start());
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, std::size_t value) {
    SIMULATED();
    const std::lock_guard guard(lock);
    const auto found = limits.find(limit);
    if (found == limits.end()) return remember(cudaErrorUnsupportedLimit);
    found->second = value;
    return remember(start());
}

cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
    SIMULATED();
    if (config == nullptr) return remember(cudaErrorInvalidValue);
    *config = cudaFuncCachePreferNone;
    return remember(start());
}

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) {
    SIMULATED();
    return remember(start());
}

cudaError_t cudaCtxResetPersistingL2Cache() {
    SIMULATED();
    return remember(start());
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    SIMULATED();
    if (least != nullptr) *least = simulator::kLeastPriority;
    if (greatest != nullptr) *greatest = simulator::kGreatestPriority;
    return remember(start());
}

}  // extern "C"
