// Virtual memory management of the driver API: addresses, memory without addresses, mappings.
#include <map>
#include <mutex>

#include "driver.h"
#include "memory.h"

using namespace simulator;

namespace {

// What each handle was made with: cuMemGetAllocationPropertiesFromHandle.
std::map<std::uint64_t, CUmemAllocationProp>& properties() {
    static auto* const all = new std::map<std::uint64_t, CUmemAllocationProp>;
    return *all;
}

std::mutex& properties_mutex() {
    static auto* const only = new std::mutex;
    return *only;
}

bool is_card(const CUmemLocation& location) {
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 &&
           location.id < static_cast<int>(cards().size());
}

bool is_host(const CUmemLocation& location) {
    return location.type == CU_MEM_LOCATION_TYPE_HOST ||
           location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

// CUDA_SUCCESS where memory with these properties can be made.
CUresult check(const CUmemAllocationProp* wanted, const char* function) {
    if (wanted == nullptr || wanted->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (is_host(wanted->location)) {
        unsupported(function);  // memory of the host, mapped by the driver API
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return is_card(wanted->location) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// Whether all these addresses are mapped, and to memory that `reader` reaches.
CUresult reachable(CUdeviceptr pointer, size_t size, int reader) {
    std::uintptr_t at = pointer;
    while (at < pointer + size) {
        Range range;
        if (!find_range(reinterpret_cast<void*>(at), &range)) return CUDA_ERROR_INVALID_VALUE;
        const bool peer = cards()[range.card].peer && cards()[reader].peer;
        if (range.card != reader && !peer) return CUDA_ERROR_INVALID_DEVICE;
        at = range.address + range.size;
    }
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* wanted,
                                       CUmemAllocationGranularity_flags) {
    DRIVER();
    if (granularity == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = check(wanted, __func__)) return error;
    *granularity = kSegment;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t size, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
    DRIVER();
    const bool power_of_two = (alignment & (alignment - 1)) == 0;
    if (pointer == nullptr || flags != 0 || !power_of_two) return CUDA_ERROR_INVALID_VALUE;
    std::uintptr_t start = 0;
    const cudaError_t error = reserve_addresses(size, alignment, &start);
    *pointer = start;
    return result(error);
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
    DRIVER();
    return result(free_addresses(pointer, size));
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* wanted, unsigned long long flags) {
    DRIVER();
    if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = check(wanted, __func__)) return error;
    if (const cudaError_t error = use_card(wanted->location.id)) return result(error);
    std::uint64_t made = 0;
    const cudaError_t error = create_physical(wanted->location.id, size, __func__, &made);
    if (error != cudaSuccess) return result(error);
    const std::lock_guard lock(properties_mutex());
    properties()[made] = *wanted;
    *handle = made;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    DRIVER();
    return result(release_physical(handle));
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* found,
                                                CUmemGenericAllocationHandle handle) {
    DRIVER();
    const std::lock_guard lock(properties_mutex());
    const auto entry = properties().find(handle);
    if (found == nullptr || entry == properties().end()) return CUDA_ERROR_INVALID_VALUE;
    *found = entry->second;
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    DRIVER();
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return result(map_physical(pointer, size, offset, handle));
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
    DRIVER();
    return result(unmap(pointer, size));
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc* accesses,
                        size_t count) {
    DRIVER();
    if (accesses == nullptr || count == 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
        if (!is_card(accesses[i].location)) return CUDA_ERROR_INVALID_DEVICE;
        if (const CUresult error = reachable(pointer, size, accesses[i].location.id)) return error;
    }
    return CUDA_SUCCESS;
}

// An address of any memory that the driver knows.
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    DRIVER();
    Range range;
    if (value == nullptr || !find_range(address(pointer), &range)) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *static_cast<unsigned*>(value) =
                range.kind == Kind::host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            *static_cast<CUdeviceptr*>(value) = pointer;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (range.kind == Kind::device) return CUDA_ERROR_INVALID_VALUE;
            *static_cast<void**>(value) = address(pointer);
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            *static_cast<unsigned*>(value) = range.kind == Kind::managed;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            *static_cast<int*>(value) = range.card;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *static_cast<CUdeviceptr*>(value) = range.address;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            *static_cast<size_t*>(value) = range.size;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MAPPED:
            *static_cast<bool*>(value) = true;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            *static_cast<unsigned long long*>(value) = range.address;
            return CUDA_SUCCESS;
        default:
            unsupported("cuPointerGetAttribute with another attribute");
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

// What is not known of a pointer is 0, and the call succeeds: cuda.h.
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr pointer) {
    DRIVER();
    if (attributes == nullptr || values == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
        if (cuPointerGetAttribute(values[i], attributes[i], pointer) == CUDA_SUCCESS) continue;
        const bool number = attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
                            attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
                            attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        std::memset(values[i], 0, number ? sizeof(unsigned) : sizeof(void*));
    }
    return CUDA_SUCCESS;
}

}  // extern "C"
