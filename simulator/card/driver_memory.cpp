// Memory of the driver API: allocations, host memory, copies.
#include "driver.h"
#include "memory.h"
#include "streams.h"

using namespace simulator;

namespace {

// Whether the address is in memory that the driver knows: host memory of the program is not.
bool known(CUdeviceptr pointer) {
    Range range;
    return find_range(address(pointer), &range);
}

CUresult copy_at_once(void* destination, const void* source, size_t bytes) {
    return result(copy_now(destination, bytes, source, bytes, bytes, 1));
}

CUresult copy_later(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind,
                    CUstream stream) {
    cudaMemcpy3DParms parameters{};
    parameters.srcPtr = {const_cast<void*>(source), bytes, bytes, 1};
    parameters.dstPtr = {destination, bytes, bytes, 1};
    parameters.extent = {bytes, 1, 1};
    parameters.kind = kind;
    return result(submit(stream, CopyWork{parameters}));
}

CUresult fill_later(CUdeviceptr destination, unsigned value, unsigned size, size_t count,
                    CUstream stream) {
    if (!known(destination)) return CUDA_ERROR_INVALID_VALUE;
    cudaMemsetParams parameters{};
    parameters.dst = address(destination);
    parameters.elementSize = size;
    parameters.value = value;
    parameters.width = count;
    parameters.height = 1;
    parameters.pitch = count * size;
    return result(submit(stream, FillWork{parameters}));
}

CUresult host_memory(size_t bytes, unsigned flags, void** pointer) {
    if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return result(allocate_host(bytes, flags, pointer));
}

// A side of a two-dimensional copy; null: an array, which has no address.
std::byte* side(CUmemorytype type, const void* host, CUdeviceptr device, size_t x, size_t y,
                size_t pitch) {
    if (type == CU_MEMORYTYPE_ARRAY) return nullptr;
    void* const base = type == CU_MEMORYTYPE_HOST ? const_cast<void*>(host) : address(device);
    return static_cast<std::byte*>(base) + y * pitch + x;
}

struct Sides {
    std::byte *destination, *source;
    explicit Sides(const CUDA_MEMCPY2D& p)
        : destination(side(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstXInBytes, p.dstY,
                           p.dstPitch)),
          source(side(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcXInBytes, p.srcY,
                      p.srcPitch)) {}
};

}  // namespace

extern "C" {

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    IN_CONTEXT();
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t bytes_free = 0, bytes_total = 0;
    memory_info(card, &bytes_free, &bytes_total);
    *free = bytes_free;
    *total = bytes_total;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
    IN_CONTEXT();
    if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return result(allocate(card, bytes, __func__, reinterpret_cast<void**>(pointer)));
}

CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned) {
    IN_CONTEXT();
    if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return result(
        allocate(card, bytes, __func__, reinterpret_cast<void**>(pointer), Kind::managed));
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    IN_CONTEXT();
    return result(release(address(pointer)));
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
    IN_CONTEXT();
    Range range;
    if (!find_range(address(pointer), &range)) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = range.address;
    if (size != nullptr) *size = range.size;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
    IN_CONTEXT();
    return host_memory(bytes, 0, pointer);
}

CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
    IN_CONTEXT();
    return host_memory(bytes, flags, pointer);
}

CUresult cuMemFreeHost(void* pointer) {
    IN_CONTEXT();
    return result(release_host(pointer));
}

CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
    IN_CONTEXT();
    return result(register_host(pointer, bytes, flags));
}

CUresult cuMemHostUnregister(void* pointer) {
    IN_CONTEXT();
    return result(unregister_host(pointer));
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned flags) {
    IN_CONTEXT();
    Range range;
    if (device == nullptr || flags != 0 || !find_range(host, &range)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = reinterpret_cast<CUdeviceptr>(host);  // unified addressing
    return CUDA_SUCCESS;
}

CUresult cuMemcpy(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
    IN_CONTEXT();
    return copy_at_once(address(destination), address(source), bytes);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr destination, const void* source, size_t bytes) {
    IN_CONTEXT();
    if (!known(destination)) return CUDA_ERROR_INVALID_VALUE;
    return copy_at_once(address(destination), source, bytes);
}

CUresult cuMemcpyDtoH_v2(void* destination, CUdeviceptr source, size_t bytes) {
    IN_CONTEXT();
    if (!known(source)) return CUDA_ERROR_INVALID_VALUE;
    return copy_at_once(destination, address(source), bytes);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
    IN_CONTEXT();
    if (!known(destination) || !known(source)) return CUDA_ERROR_INVALID_VALUE;
    return copy_at_once(address(destination), address(source), bytes);
}

CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                       CUstream stream) {
    IN_CONTEXT();
    return copy_later(address(destination), address(source), bytes, cudaMemcpyDefault, stream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void* source, size_t bytes,
                              CUstream stream) {
    IN_CONTEXT();
    if (!known(destination)) return CUDA_ERROR_INVALID_VALUE;
    return copy_later(address(destination), source, bytes, cudaMemcpyHostToDevice, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void* destination, CUdeviceptr source, size_t bytes,
                              CUstream stream) {
    IN_CONTEXT();
    if (!known(source)) return CUDA_ERROR_INVALID_VALUE;
    return copy_later(destination, address(source), bytes, cudaMemcpyDeviceToHost, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                              CUstream stream) {
    IN_CONTEXT();
    if (!known(destination) || !known(source)) return CUDA_ERROR_INVALID_VALUE;
    return copy_later(address(destination), address(source), bytes, cudaMemcpyDeviceToDevice,
                      stream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr destination, CUcontext, CUdeviceptr source, CUcontext,
                           size_t bytes, CUstream stream) {
    IN_CONTEXT();
    if (!known(destination) || !known(source)) return CUDA_ERROR_INVALID_VALUE;
    return copy_later(address(destination), address(source), bytes, cudaMemcpyDeviceToDevice,
                      stream);
}

CUresult cuMemcpyPeer(CUdeviceptr destination, CUcontext to, CUdeviceptr source, CUcontext from,
                      size_t bytes) {
    order_cards();
    const CUresult error = cuMemcpyPeerAsync(destination, to, source, from, bytes, nullptr);
    order_cards();
    return error;
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* p) {
    IN_CONTEXT();
    if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Sides sides(*p);
    if (sides.destination == nullptr || sides.source == nullptr) {
        unsupported("cuMemcpy2D_v2 with an array");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return result(copy_now(sides.destination, p->dstPitch, sides.source, p->srcPitch,
                           p->WidthInBytes, p->Height));
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* p, CUstream stream) {
    IN_CONTEXT();
    if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Sides sides(*p);
    if (sides.destination == nullptr || sides.source == nullptr) {
        unsupported("cuMemcpy2DAsync_v2 with an array");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    cudaMemcpy3DParms parameters{};
    parameters.srcPtr = {sides.source, p->srcPitch, p->WidthInBytes, p->Height};
    parameters.dstPtr = {sides.destination, p->dstPitch, p->WidthInBytes, p->Height};
    parameters.extent = {p->WidthInBytes, p->Height, 1};
    parameters.kind = cudaMemcpyDefault;
    return result(submit(stream, CopyWork{parameters}));
}

CUresult cuMemsetD8_v2(CUdeviceptr destination, unsigned char value, size_t count) {
    IN_CONTEXT();
    return fill_later(destination, value, 1, count, nullptr);
}

CUresult cuMemsetD16_v2(CUdeviceptr destination, unsigned short value, size_t count) {
    IN_CONTEXT();
    return fill_later(destination, value, 2, count, nullptr);
}

CUresult cuMemsetD32_v2(CUdeviceptr destination, unsigned value, size_t count) {
    IN_CONTEXT();
    return fill_later(destination, value, 4, count, nullptr);
}

CUresult cuMemsetD8Async(CUdeviceptr destination, unsigned char value, size_t count,
                         CUstream stream) {
    IN_CONTEXT();
    return fill_later(destination, value, 1, count, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr destination, unsigned short value, size_t count,
                          CUstream stream) {
    IN_CONTEXT();
    return fill_later(destination, value, 2, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr destination, unsigned value, size_t count, CUstream stream) {
    IN_CONTEXT();
    return fill_later(destination, value, 4, count, stream);
}

}  // extern "C"
