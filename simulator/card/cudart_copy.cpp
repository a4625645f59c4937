// libcudart: copies and fills. The direction follows from the addresses, as with unified addressing.
#include "cudart.h"

using namespace simulator;

namespace {

cudaMemcpy3DParms rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                       std::size_t width, std::size_t height) {
    cudaMemcpy3DParms copy = {};
    copy.dstPtr = {to, to_pitch, width, height};
    copy.srcPtr = {const_cast<void*>(from), from_pitch, width, height};
    copy.extent = {width, height, 1};
    return copy;
}

bool is_kind(cudaMemcpyKind kind) {
    return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

cudaError_t submit_copy(const cudaMemcpy3DParms& copy, cudaStream_t stream) {
    if (!is_kind(copy.kind)) return cudaErrorInvalidMemcpyDirection;
    const bool some = copy.extent.width != 0 && copy.extent.height != 0 && copy.extent.depth != 0;
    return some ? submit(stream, CopyWork{copy}) : use_card(current_card());
}

cudaError_t copy_bytes(void* to, const void* from, std::size_t size, cudaMemcpyKind kind,
                       cudaStream_t stream) {
    cudaMemcpy3DParms copy = rows(to, size, from, size, size, 1);
    copy.kind = kind;
    return submit_copy(copy, stream);
}

cudaError_t copy_at_once(const cudaMemcpy3DParms& copy,
                         const char* function = __builtin_FUNCTION()) {
    if (const cudaError_t error = use_card(current_card())) return error;
    if (const cudaError_t error = check_unsafe_call(function)) return error;
    if (const cudaError_t error = submit_copy(copy, nullptr)) return error;
    copied_now(copy.dstPtr.ptr, copy.srcPtr.ptr);
    return cudaSuccess;
}

// Between two cards: in order with all that they do (cudaMemcpyPeer).
cudaError_t copy_between(const cudaMemcpy3DParms& copy,
                         const char* function = __builtin_FUNCTION()) {
    order_cards();
    const cudaError_t error = copy_at_once(copy, function);
    order_cards();
    return error;
}

cudaError_t fill_rows(void* to, std::size_t pitch, int value, std::size_t width,
                      std::size_t height, cudaStream_t stream) {
    if (width == 0 || height == 0) return use_card(current_card());
    cudaMemsetParams set = {};
    set.dst = to;
    set.pitch = pitch;
    set.value = static_cast<unsigned char>(value);
    set.elementSize = 1;
    set.width = width;
    set.height = height;
    return submit(stream, FillWork{set});
}

cudaError_t fill_3d(const cudaPitchedPtr& to, int value, cudaExtent extent, cudaStream_t stream) {
    for (std::size_t slice = 0; slice < extent.depth; ++slice) {
        void* const at = static_cast<char*>(to.ptr) + slice * to.pitch * to.ysize;
        const cudaError_t error =
            fill_rows(at, to.pitch, value, extent.width, extent.height, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaMemcpy3DParms without_cards(const cudaMemcpy3DPeerParms& peer) {
    cudaMemcpy3DParms copy = {};
    copy.srcArray = peer.srcArray;
    copy.srcPos = peer.srcPos;
    copy.srcPtr = peer.srcPtr;
    copy.dstArray = peer.dstArray;
    copy.dstPos = peer.dstPos;
    copy.dstPtr = peer.dstPtr;
    copy.extent = peer.extent;
    copy.kind = cudaMemcpyDefault;
    return copy;
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
    SIMULATED();
    cudaMemcpy3DParms copy = rows(to, size, from, size, size, 1);
    copy.kind = kind;
    return remember(copy_at_once(copy));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    SIMULATED();
    return remember(copy_bytes(to, from, size, kind, stream));
}

cudaError_t cudaMemcpyPeer(void* to, int to_card, const void* from, int from_card,
                           std::size_t size) {
    SIMULATED();
    if (const cudaError_t error = cudart::check_devices(to_card, from_card)) return remember(error);
    cudaMemcpy3DParms copy = rows(to, size, from, size, size, 1);
    copy.kind = cudaMemcpyDefault;
    return remember(copy_between(copy));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_card, const void* from, int from_card,
                                std::size_t size, cudaStream_t stream) {
    SIMULATED();
    if (const cudaError_t error = cudart::check_devices(to_card, from_card)) return remember(error);
    return remember(copy_bytes(to, from, size, cudaMemcpyDefault, stream));
}

cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t height, cudaMemcpyKind kind) {
    SIMULATED();
    cudaMemcpy3DParms copy = rows(to, to_pitch, from, from_pitch, width, height);
    copy.kind = kind;
    return remember(copy_at_once(copy));
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
    SIMULATED();
    cudaMemcpy3DParms copy = rows(to, to_pitch, from, from_pitch, width, height);
    copy.kind = kind;
    return remember(submit_copy(copy, stream));
}

cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* copy) {
    SIMULATED();
    if (copy == nullptr) return remember(cudaErrorInvalidValue);
    return remember(copy_at_once(*copy));
}

cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* copy, cudaStream_t stream) {
    SIMULATED();
    if (copy == nullptr) return remember(cudaErrorInvalidValue);
    return remember(submit_copy(*copy, stream));
}

cudaError_t cudaMemcpy3DPeer(const cudaMemcpy3DPeerParms* copy) {
    SIMULATED();
    if (copy == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = cudart::check_devices(copy->dstDevice, copy->srcDevice)) {
        return remember(error);
    }
    return remember(copy_between(without_cards(*copy)));
}

cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms* copy, cudaStream_t stream) {
    SIMULATED();
    if (copy == nullptr) return remember(cudaErrorInvalidValue);
    if (const cudaError_t error = cudart::check_devices(copy->dstDevice, copy->srcDevice)) {
        return remember(error);
    }
    return remember(submit_copy(without_cards(*copy), stream));
}

cudaError_t cudaMemset(void* to, int value, std::size_t size) {
    SIMULATED();
    if (const cudaError_t error = check_unsafe_call()) return remember(error);
    return remember(fill_rows(to, size, value, size, 1, nullptr));
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t size, cudaStream_t stream) {
    SIMULATED();
    return remember(fill_rows(to, size, value, size, 1, stream));
}

cudaError_t cudaMemset2D(void* to, std::size_t pitch, int value, std::size_t width,
                         std::size_t height) {
    SIMULATED();
    if (const cudaError_t error = check_unsafe_call()) return remember(error);
    return remember(fill_rows(to, pitch, value, width, height, nullptr));
}

cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
    SIMULATED();
    return remember(fill_rows(to, pitch, value, width, height, stream));
}

cudaError_t cudaMemset3D(cudaPitchedPtr to, int value, cudaExtent extent) {
    SIMULATED();
    if (const cudaError_t error = check_unsafe_call()) return remember(error);
    return remember(fill_3d(to, value, extent, nullptr));
}

cudaError_t cudaMemset3DAsync(cudaPitchedPtr to, int value, cudaExtent extent,
                              cudaStream_t stream) {
    SIMULATED();
    return remember(fill_3d(to, value, extent, stream));
}

}  // extern "C"
