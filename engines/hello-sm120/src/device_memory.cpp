#include "device_memory.h"

#include "cuda_error.h"
#include "hello_cuda.h"

#ifndef HELLO_CUDA_NO_VMM
#include <cuda.h>
#endif

namespace hello::cuda {

namespace {

constexpr std::size_t kAlignment = 256;

std::size_t round_up(std::size_t value, std::size_t step) {
    return (value + step - 1) / step * step;
}

#ifndef HELLO_CUDA_NO_VMM

void check_driver(CUresult result) {
    if (result == CUDA_SUCCESS) return;
    const char* text = nullptr;
    cuGetErrorString(result, &text);
    throw BackendError(BackendError::Kind::failed, text != nullptr ? text : "unknown driver error");
}

// Returns the ordinal of the current device if it can map virtual memory, else -1.
int device_with_vmm() {
    int ordinal = 0;
    check(cudaGetDevice(&ordinal));
    CUdevice device = 0;
    check_driver(cuDeviceGet(&device, ordinal));
    int supported = 0;
    check_driver(cuDeviceGetAttribute(
        &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
    return supported != 0 ? ordinal : -1;
}

CUmemAllocationProp properties_of(int ordinal) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = ordinal;
    return properties;
}

// Maps `size` bytes (a multiple of the granularity) at the reserved `address`.
void map_pages(CUdeviceptr address, std::size_t size, const CUmemAllocationProp& properties) {
    CUmemGenericAllocationHandle pages = 0;
    check_driver(cuMemCreate(&pages, size, &properties, 0));
    const CUresult mapped = cuMemMap(address, size, 0, pages, 0);
    // The mapping keeps the pages alive.
    cuMemRelease(pages);
    check_driver(mapped);
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const CUresult accessible = cuMemSetAccess(address, size, &access, 1);
    if (accessible != CUDA_SUCCESS) cuMemUnmap(address, size);
    check_driver(accessible);
}

// Returns the address of `size` mapped bytes; rounds `size` up to the granularity.
void* map_block(int ordinal, std::size_t& size) {
    const CUmemAllocationProp properties = properties_of(ordinal);
    std::size_t granularity = 0;
    check_driver(cuMemGetAllocationGranularity(&granularity, &properties,
                                               CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    size = round_up(size, granularity);
    CUdeviceptr address = 0;
    check_driver(cuMemAddressReserve(&address, size, 0, 0, 0));
    try {
        map_pages(address, size, properties);
    } catch (...) {
        cuMemAddressFree(address, size);
        throw;
    }
    return reinterpret_cast<void*>(address);
}

void unmap_block(void* base, std::size_t size) {
    const auto address = reinterpret_cast<CUdeviceptr>(base);
    cuMemUnmap(address, size);
    cuMemAddressFree(address, size);
}

#endif

}  // namespace

bool built_with_vmm() {
#ifndef HELLO_CUDA_NO_VMM
    return true;
#else
    return false;
#endif
}

DeviceMemory::DeviceMemory(std::size_t bytes) : size_(bytes) {
#ifndef HELLO_CUDA_NO_VMM
    // Some virtual GPUs cannot map memory themselves; they take the other way.
    const int ordinal = device_with_vmm();
    if (ordinal >= 0) {
        base_ = map_block(ordinal, size_);
        mapped_ = true;
        return;
    }
#endif
    check(cudaMalloc(&base_, size_));
}

DeviceMemory::~DeviceMemory() {
#ifndef HELLO_CUDA_NO_VMM
    if (mapped_) {
        unmap_block(base_, size_);
        return;
    }
#endif
    cudaFree(base_);
}

float* DeviceMemory::floats(std::size_t count) {
    const std::size_t bytes = bytes_for(count);
    if (bytes > size_ - used_) check(cudaErrorMemoryAllocation);
    auto* piece = reinterpret_cast<float*>(static_cast<char*>(base_) + used_);
    used_ += bytes;
    return piece;
}

std::size_t DeviceMemory::bytes_for(std::size_t count) {
    return round_up(count * sizeof(float), kAlignment);
}

}  // namespace hello::cuda
