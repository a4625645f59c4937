#include "common.cuh"
#include "ggml-cuda.h"

// One thread for each float of a head, all in one block.
static constexpr int LARGEST_HEAD = 256;

int ggml_cuda_largest_head() {
    return LARGEST_HEAD;
}

namespace ggml_cuda {

// In one pass: when a better score comes, what was summed so far shrinks.
static __global__ void __launch_bounds__(LARGEST_HEAD)
    weighted_mean_kernel(const float* scores, const float* values, float* out, int count) {
    const int i = threadIdx.x;
    float best = -INFINITY;
    float sum = 0;
    float total = 0;
    for (int j = 0; j < count; ++j) {
        const float better = fmaxf(best, scores[j]);
        const float shrink = expf(best - better);
        const float weight = expf(scores[j] - better);
        sum = sum * shrink + weight;
        total = total * shrink + weight * values[j * blockDim.x + i];
        best = better;
    }
    out[i] = total / sum;
}

void weighted_mean(const float* scores, const float* values, float* out, int head, int count) {
    if (head > LARGEST_HEAD) throw failure("the head is too long for the kernel");
    weighted_mean_kernel<<<1, head>>>(scores, values, out, count);
    check(cudaGetLastError());
}

}  // namespace ggml_cuda
