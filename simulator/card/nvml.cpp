// NVML: what vLLM asks to find its platform (vllm/platforms/cuda.py, through nvidia-ml-py), and what
// PyTorch needs to say that a card is full (c10/cuda/driver_api.h, CUDACachingAllocator.cpp).
//
// The bases have no nvml.h: declarations and numbers come from the NVML API reference.
#include <cuda.h>

#include <cstdio>
#include <cstring>

#include "attributes.h"
#include "memory.h"

SIMULATED_LIBRARY()

using namespace simulator;

namespace {

enum Status {
    kSuccess = 0,
    kInvalidArgument = 2,
    kNotSupported = 3,
    kNotFound = 6,
    kInsufficientSize = 7,
    kDriverNotLoaded = 9,
};

using Device = const Card*;

struct Memory {
    unsigned long long total, free, used;
};

Status text(char* place, unsigned length, const std::string& value) {
    if (place == nullptr) return kInvalidArgument;
    if (value.size() >= length) return kInsufficientSize;
    std::memcpy(place, value.c_str(), value.size() + 1);
    return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
    SIMULATED();
    return cards().empty() ? kDriverNotLoaded : kSuccess;
}

int nvmlInitWithFlags(unsigned) {
    SIMULATED();
    return cards().empty() ? kDriverNotLoaded : kSuccess;
}

int nvmlShutdown() {
    SIMULATED();
    return kSuccess;
}

const char* nvmlErrorString(int status) {
    SIMULATED();
    return status == kSuccess ? "Success" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned* count) {
    SIMULATED();
    *count = static_cast<unsigned>(cards().size());
    return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
    SIMULATED();
    if (index >= cards().size()) return kInvalidArgument;
    *device = &cards()[index];
    return kSuccess;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    SIMULATED();
    *version = CUDA_VERSION;
    return kSuccess;
}

// PyTorch writes the domain with eight digits, the runtime with four.
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, Device* device) {
    SIMULATED();
    unsigned domain = 0, bus = 0, slot = 0;
    if (std::sscanf(address, "%x:%x:%x", &domain, &bus, &slot) != 3) return kInvalidArgument;
    char known[40];
    std::snprintf(known, sizeof known, "%04x:%02x:%02x.0", domain, bus, slot);
    for (const Card& card : cards()) {
        if (pci_address(card.index) != known) continue;
        *device = &card;
        return kSuccess;
    }
    return kNotFound;
}

int nvmlDeviceGetComputeRunningProcesses(Device, unsigned*, void*) {
    SIMULATED();
    return kNotSupported;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned, int*) {
    SIMULATED();
    return kNotSupported;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, unsigned, void*) {
    SIMULATED();
    return kNotSupported;
}

int nvmlDeviceGetName(Device device, char* place, unsigned length) {
    SIMULATED();
    return text(place, length, device->name);
}

int nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
    SIMULATED();
    *major = device->major;
    *minor = device->minor;
    return kSuccess;
}

int nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
    SIMULATED();
    std::uint64_t free = 0, total = 0;
    memory_info(device->index, &free, &total);
    *memory = {total, free, total - free};
    return kSuccess;
}

int nvmlDeviceGetUUID(Device device, char* place, unsigned length) {
    SIMULATED();
    unsigned char uuid[16];
    card_uuid(device->index, uuid);
    std::string value = "GPU-";
    for (int i = 0; i < 16; ++i) {
        char digits[4];
        std::snprintf(digits, sizeof digits, "%02x", uuid[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) value += '-';
        value += digits;
    }
    return text(place, length, value);
}

}  // extern "C"
