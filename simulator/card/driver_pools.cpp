// Memory of the driver API in stream order, and the pools that it comes from.
#include "driver.h"
#include "memory.h"
#include "streams.h"

using namespace simulator;

namespace {

Pool* pool_of(CUmemoryPool handle) { return reinterpret_cast<Pool*>(handle); }

CUresult give_pool(CUmemoryPool* pool, CUdevice device, Pool* (*which)(int)) {
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = reinterpret_cast<CUmemoryPool>(which(device));
    return CUDA_SUCCESS;
}

CUresult allocate_from(Pool* pool, CUdeviceptr* pointer, size_t bytes, const char* function,
                       CUstream stream) {
    if (pointer == nullptr || pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    void* made = nullptr;
    if (const cudaError_t error = pool_allocate(pool, bytes, function, &made)) return result(error);
    *pointer = reinterpret_cast<CUdeviceptr>(made);
    return result(submit(stream, MemoryWork{made, false}));
}

}  // namespace

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
    IN_CONTEXT();
    return allocate_from(current_pool(card), pointer, bytes, __func__, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
    IN_CONTEXT();
    return allocate_from(pool_of(pool), pointer, bytes, __func__, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    IN_CONTEXT();
    return result(release_in_order(stream, address(pointer)));
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    DRIVER();
    return give_pool(pool, device, default_pool);
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    DRIVER();
    return give_pool(pool, device, current_pool);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    DRIVER();
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    return result(set_current_pool(device, pool_of(pool)));
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
    DRIVER();
    if (pool == nullptr || properties == nullptr ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_card(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = reinterpret_cast<CUmemoryPool>(
        create_pool(properties->location.id, properties->maxSize));
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    DRIVER();
    return result(destroy_pool(pool_of(pool)));
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    DRIVER();
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(pool_trim(pool_of(pool), keep));
}

// The attributes have the numbers of the runtime's.
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    DRIVER();
    if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(pool_get(pool_of(pool), static_cast<cudaMemPoolAttr>(attribute), value));
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    DRIVER();
    if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(pool_set(pool_of(pool), static_cast<cudaMemPoolAttr>(attribute), value));
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
    DRIVER();
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    return result(graph_memory_get(attribute, value));
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
    DRIVER();
    if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
    return result(graph_memory_set(attribute, value));
}

}  // extern "C"
