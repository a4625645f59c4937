// libcudart: memory in stream order, and the pools that it comes from.
#include "cudart.h"

using namespace simulator;

namespace {

cudaMemPool_t handle(Pool* pool) { return reinterpret_cast<cudaMemPool_t>(pool); }
Pool* pool_of(cudaMemPool_t handle) { return reinterpret_cast<Pool*>(handle); }

// Allocations during a capture are made at once, and stay until they are freed.
cudaError_t allocate_in_order(void** pointer, std::size_t size, Pool* pool, const char* function,
                              cudaStream_t stream) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = pool_allocate(pool, size, function, pointer)) return error;
    return submit(stream, MemoryWork{*pointer, false});
}

cudaError_t pool_for(cudaMemPool_t* pool, int device, Pool* (*which)(int)) {
    if (pool == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = cudart::check_device(device)) return error;
    *pool = handle(which(device));
    return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMallocAsync(void** pointer, std::size_t size, cudaStream_t stream) {
    SIMULATED();
    if (const cudaError_t error = use_card(current_card())) return remember(error);
    int card = current_card();
    if (const cudaError_t error = stream_info(stream, &card, nullptr, nullptr, nullptr)) {
        return remember(error);
    }
    return remember(allocate_in_order(pointer, size, current_pool(card), __func__, stream));
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t size, cudaMemPool_t pool,
                                    cudaStream_t stream) {
    SIMULATED();
    if (pool == nullptr) return remember(cudaErrorInvalidValue);
    return remember(allocate_in_order(pointer, size, pool_of(pool), __func__, stream));
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
    SIMULATED();
    Range range;
    if (pointer == nullptr) return cudaSuccess;
    if (!find_range(pointer, &range)) return remember(cudaErrorInvalidValue);
    return remember(release_in_order(stream, pointer));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    SIMULATED();
    return remember(pool_for(pool, device, default_pool));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
    SIMULATED();
    return remember(pool_for(pool, device, current_pool));
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    SIMULATED();
    if (const cudaError_t error = cudart::check_device(device)) return remember(error);
    return remember(set_current_pool(device, pool_of(pool)));
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
    SIMULATED();
    if (pool == nullptr || properties == nullptr ||
        properties->location.type != cudaMemLocationTypeDevice) {
        return remember(cudaErrorInvalidValue);
    }
    const int card = properties->location.id;
    if (const cudaError_t error = cudart::check_device(card)) return remember(error);
    *pool = handle(create_pool(card, properties->maxSize));
    return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    SIMULATED();
    return remember(destroy_pool(pool_of(pool)));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t keep) {
    SIMULATED();
    if (pool == nullptr) return remember(cudaErrorInvalidValue);
    return remember(pool_trim(pool_of(pool), keep));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
    SIMULATED();
    if (pool == nullptr || value == nullptr) return remember(cudaErrorInvalidValue);
    return remember(pool_get(pool_of(pool), attribute, value));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
    SIMULATED();
    if (pool == nullptr || value == nullptr) return remember(cudaErrorInvalidValue);
    return remember(pool_set(pool_of(pool), attribute, value));
}

// Which cards may use a pool's memory is not checked: no kernel runs.
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access,
                                 std::size_t count) {
    SIMULATED();
    if (pool == nullptr || access == nullptr) return remember(cudaErrorInvalidValue);
    for (std::size_t i = 0; i < count; ++i) {
        const cudaError_t error = cudart::check_device(access[i].location.id);
        if (error != cudaSuccess) return remember(error);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute,
                                           void* value) {
    SIMULATED();
    const cudaError_t error = cudart::check_device(device);
    return remember(error == cudaSuccess ? graph_memory_get(attribute, value) : error);
}

cudaError_t cudaDeviceSetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute,
                                           void* value) {
    SIMULATED();
    const cudaError_t error = cudart::check_device(device);
    return remember(error == cudaSuccess ? graph_memory_set(attribute, value) : error);
}

}  // extern "C"
