// libcudart: memory of the cards and of the host.
#include "cudart.h"

using namespace simulator;

namespace {

constexpr std::size_t kPitch = 512;  // rows of cudaMallocPitch

cudaError_t allocate_now(std::size_t size, const char* function, void** pointer,
                         Kind kind = Kind::device) {
    if (pointer == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = use_card(current_card())) return error;
    if (const cudaError_t error = check_unsafe_call(function)) return error;
    return allocate(current_card(), size, function, pointer, kind);
}

cudaMemoryType type_of(const Range& range) {
    switch (range.kind) {
        case Kind::device: return cudaMemoryTypeDevice;
        case Kind::managed: return cudaMemoryTypeManaged;
        default: return cudaMemoryTypeHost;
    }
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t size) {
    SIMULATED();
    return remember(allocate_now(size, __func__, pointer));
}

cudaError_t cudaMallocManaged(void** pointer, std::size_t size, unsigned flags) {
    SIMULATED();
    const bool known = flags == cudaMemAttachGlobal || flags == cudaMemAttachHost;
    if (!known || size == 0) return remember(cudaErrorInvalidValue);
    return remember(allocate_now(size, __func__, pointer, Kind::managed));
}

cudaError_t cudaMallocPitch(void** pointer, std::size_t* pitch, std::size_t width,
                            std::size_t height) {
    SIMULATED();
    if (pitch == nullptr) return remember(cudaErrorInvalidValue);
    *pitch = (width + kPitch - 1) / kPitch * kPitch;
    return remember(allocate_now(*pitch * height, __func__, pointer));
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent) {
    SIMULATED();
    if (pointer == nullptr) return remember(cudaErrorInvalidValue);
    const std::size_t pitch = (extent.width + kPitch - 1) / kPitch * kPitch;
    *pointer = {nullptr, pitch, extent.width, extent.height};
    return remember(allocate_now(pitch * extent.height * extent.depth, __func__, &pointer->ptr));
}

cudaError_t cudaFree(void* pointer) {
    SIMULATED();
    if (const cudaError_t error = use_card(current_card())) return remember(error);
    if (pointer == nullptr) return cudaSuccess;
    if (const cudaError_t error = check_unsafe_call()) return remember(error);
    return remember(release(pointer));
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    SIMULATED();
    if (free == nullptr || total == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = use_card(current_card())) return remember(error);
    std::uint64_t left = 0, all = 0;
    memory_info(current_card(), &left, &all);
    *free = left;
    *total = all;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, std::size_t size) {
    SIMULATED();
    if (pointer == nullptr) return remember(cudaErrorInvalidValue);
    return remember(allocate_host(size, 0, pointer));
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t size, unsigned flags) {
    SIMULATED();
    if (pointer == nullptr) return remember(cudaErrorInvalidValue);
    return remember(allocate_host(size, flags, pointer));
}

cudaError_t cudaFreeHost(void* pointer) {
    SIMULATED();
    return remember(release_host(pointer));
}

cudaError_t cudaHostRegister(void* pointer, std::size_t size, unsigned flags) {
    SIMULATED();
    return remember(register_host(pointer, size, flags));
}

cudaError_t cudaHostUnregister(void* pointer) {
    SIMULATED();
    return remember(unregister_host(pointer));
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
    SIMULATED();
    Range range;
    if (device == nullptr || !find_range(host, &range) || range.kind == Kind::device) {
        return remember(cudaErrorInvalidValue);
    }
    *device = host;  // one address space
    return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned* flags, void* host) {
    SIMULATED();
    Range range;
    if (flags == nullptr || !find_range(host, &range) || range.kind != Kind::host) {
        return remember(cudaErrorInvalidValue);
    }
    *flags = range.flags;
    return cudaSuccess;
}

// Host memory that the driver does not know is "unregistered", which is no error (since 11.0).
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    SIMULATED();
    if (attributes == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = start()) return remember(error);
    *attributes = {};
    Range range;
    if (!find_range(pointer, &range)) {
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = cudaInvalidDeviceId;
        attributes->hostPointer = const_cast<void*>(pointer);
        return cudaSuccess;
    }
    attributes->type = type_of(range);
    attributes->device = range.card;
    attributes->devicePointer = const_cast<void*>(pointer);
    if (range.kind != Kind::device) attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
}

cudaError_t cudaMemAdvise(const void* pointer, std::size_t, cudaMemoryAdvise, cudaMemLocation) {
    SIMULATED();
    Range range;
    return remember(find_range(pointer, &range) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemPrefetchAsync(const void* pointer, std::size_t, cudaMemLocation, unsigned,
                                 cudaStream_t stream) {
    SIMULATED();
    Range range;
    if (!find_range(pointer, &range)) return remember(cudaErrorInvalidValue);
    return remember(submit(stream, EmptyWork{}));
}

}  // extern "C"
