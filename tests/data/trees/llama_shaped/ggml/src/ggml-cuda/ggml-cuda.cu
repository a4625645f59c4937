#include "ggml-cuda.h"

#include <cublas_v2.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "common.cuh"

namespace {

using namespace ggml_cuda;

void check_blas(cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) throw failure(cublasGetStatusString(status));
}

struct destroy_blas {
    void operator()(cublasHandle_t handle) const { cublasDestroy(handle); }
};
using blas = std::unique_ptr<std::remove_pointer_t<cublasHandle_t>, destroy_blas>;

blas make_blas() {
    cublasHandle_t handle = nullptr;
    check_blas(cublasCreate(&handle));
    return blas(handle);
}

void attend_or_throw(const float* query, const float* keys, const float* values, float* out,
                     int head, int count) {
    const device_buffer q(head), k(head * count), v(head * count), scores(count), result(head);
    q.upload(query, head);
    k.upload(keys, head * count);
    v.upload(values, head * count);
    scale(q.get(), ggml_query_scale(head), head);
    const float one = 1;
    const float zero = 0;
    const blas handle = make_blas();
    // Rows of ours are columns of cuBLAS's.
    check_blas(cublasSgemv(handle.get(), CUBLAS_OP_T, head, count, &one, k.get(), head, q.get(), 1,
                           &zero, scores.get(), 1));
    weighted_mean(scores.get(), v.get(), result.get(), head, count);
    result.download(out, head);
}

bool attend(const float* query, const float* keys, const float* values, float* out, int head,
            int count) {
    try {
        attend_or_throw(query, keys, values, out, head, count);
        return true;
    } catch (const failure& error) {
        std::fprintf(stderr, "CUDA error: %s\n", error.what());
        return false;
    }
}

bool compute_here(ggml_op op, const void* in, int bytes, float* out, int count) {
    try {
        const std::size_t floats = (bytes + sizeof(float) - 1) / sizeof(float);
        std::vector<float> whole(floats);
        std::memcpy(whole.data(), in, bytes);
        const device_buffer from(floats), to(count);
        from.upload(whole.data(), floats);
        compute(op, from.get(), to.get(), count);
        to.download(out, count);
        return true;
    } catch (const failure& error) {
        std::fprintf(stderr, "CUDA error: %s\n", error.what());
        return false;
    }
}

}  // namespace

const ggml_backend* ggml_backend_cuda() {
    static const ggml_backend backend = {"CUDA0", attend, compute_here};
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess) {
        std::fprintf(stderr, "ggml_cuda_init: failed to initialize CUDA: %s\n",
                     cudaGetErrorString(error));
        return nullptr;
    }
    return devices > 0 ? &backend : nullptr;
}

#ifdef GGML_BACKEND_DL
extern "C" const ggml_backend* ggml_backend_init() { return ggml_backend_cuda(); }
#endif
