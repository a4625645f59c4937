// Devices of the driver API: what they are, and how they reach each other.
#include <cstdio>

#include "attributes.h"
#include "driver.h"

SIMULATED_LIBRARY()

using namespace simulator;

namespace {

bool peers(CUdevice one, CUdevice other) {
    return one != other && cards()[one].peer && cards()[other].peer;
}

}  // namespace

// Every function that takes a device begins with this.
#define WITH_DEVICE(device) \
    DRIVER();               \
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE

extern "C" {

CUresult cuInit(unsigned flags) {
    SIMULATED();
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return result(start());
}

CUresult cuDriverGetVersion(int* version) {
    SIMULATED();
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
    DRIVER();
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(cards().size());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    DRIVER();
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_card(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    WITH_DEVICE(device);
    if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, length, "%s", cards()[device].name.c_str());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    WITH_DEVICE(device);
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    card_uuid(device, reinterpret_cast<unsigned char*>(uuid->bytes));
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    WITH_DEVICE(device);
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *bytes = cards()[device].memory;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    DRIVER();
    return result(card_attribute(device, attribute, value));
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    WITH_DEVICE(device);
    if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *major = cards()[device].major;
    *minor = cards()[device].minor;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
    WITH_DEVICE(device);
    if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(text, length, "%s", pci_address(device).c_str());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
    DRIVER();
    if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (const Card& card : cards()) {
        if (pci_address(card.index) == text) {
            *device = card.index;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int* possible, CUdevice device, CUdevice peer) {
    WITH_DEVICE(device);
    if (!is_card(peer)) return CUDA_ERROR_INVALID_DEVICE;
    if (possible == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *possible = peers(device, peer);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice device,
                                 CUdevice peer) {
    WITH_DEVICE(device);
    if (!is_card(peer) || device == peer) return CUDA_ERROR_INVALID_DEVICE;
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool access = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
                        attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_ACCESS_SUPPORTED;
    *value = access && peers(device, peer);
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext context, unsigned flags) {
    IN_CONTEXT();
    if (context == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return peers(card, context->card) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

}  // extern "C"
