#include "common.cuh"

namespace ggml_cuda {

static __global__ void scale_kernel(float* values, float factor, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] *= factor;
}

void scale(float* values, float factor, int count) {
    constexpr int threads = 128;
    scale_kernel<<<(count + threads - 1) / threads, threads>>>(values, factor, count);
    check(cudaGetLastError());
}

}  // namespace ggml_cuda
