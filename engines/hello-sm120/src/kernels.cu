#include "cuda_error.h"
#include "kernels.h"

namespace hello::cuda {

namespace {

constexpr int kWarp = 32;
constexpr int kWarpsPerBlock = 4;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;
// One thread a symbol, in whole warps so that shuffles see full ones.
constexpr int kSoftmaxThreads = 96;
static_assert(kSoftmaxThreads == kVocabulary && kSoftmaxThreads % kWarp == 0);

__global__ void update_state(const float* embedding, const float* product, float* state) {
    const int i = threadIdx.x;
    const float sum = (embedding[i] + product[i]) / kStateDivisor;
    state[i] = fminf(fmaxf(rintf(sum), -kStateLimit), kStateLimit);
}

__device__ float warp_sum(float value) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        value += __shfl_down_sync(kAllLanes, value, offset);
    }
    return value;
}

// One warp a row.
__global__ void matrix_vector(const float* matrix, const float* bias, const float* vector,
                              float* result) {
    const int row = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp;
    const int lane = threadIdx.x % kWarp;
    if (row >= kVocabulary) return;
    float sum = 0;
    for (int i = lane; i < kHidden; i += kWarp) sum += matrix[row * kHidden + i] * vector[i];
    sum = warp_sum(sum);
    if (lane == 0) result[row] = sum + bias[row];
}

// Every thread looks through the same few shared values: at this size a tree of reductions would
// be longer and no faster. The order is the CPU's, so that a tie goes to the same symbol.
__global__ void softmax(const float* logits, StepOutput* result) {
    __shared__ float values[kVocabulary];
    __shared__ float weights[kVocabulary];
    const int i = threadIdx.x;
    values[i] = logits[i];
    __syncthreads();
    int best = 0;
    for (int j = 1; j < kVocabulary; ++j) {
        if (values[j] > values[best]) best = j;
    }
    weights[i] = expf((values[i] - values[best]) / kTemperature);
    __syncthreads();
    float sum = 0;
    for (int j = 0; j < kVocabulary; ++j) sum += weights[j];
    result->probabilities[i] = weights[i] / sum;
    if (i == 0) result->best = best;
}

}  // namespace

void require_kernel_image() {
    cudaFuncAttributes attributes = {};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, softmax);
    // The runtime has two names for a kernel without code for the device.
    check(error == cudaErrorInvalidDeviceFunction ? cudaErrorNoKernelImageForDevice : error);
}

void launch_update_state(const float* embedding, const float* product, float* state,
                         cudaStream_t stream) {
    update_state<<<1, kHidden, 0, stream>>>(embedding, product, state);
    check(cudaGetLastError());
}

void launch_logits(const float* output, const float* bias, const float* state, float* logits,
                   cudaStream_t stream) {
    constexpr int blocks = (kVocabulary + kWarpsPerBlock - 1) / kWarpsPerBlock;
    matrix_vector<<<blocks, kWarpsPerBlock * kWarp, 0, stream>>>(output, bias, state, logits);
    check(cudaGetLastError());
}

void launch_softmax(const float* logits, StepOutput* result, cudaStream_t stream) {
    softmax<<<1, kSoftmaxThreads, 0, stream>>>(logits, result);
    check(cudaGetLastError());
}

}  // namespace hello::cuda
