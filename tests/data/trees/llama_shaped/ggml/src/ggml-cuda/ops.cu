#include <cuda_fp16.h>

#include <cstdint>

#include "common.cuh"

namespace ggml_cuda {

static __global__ void dequantize_q4(const uint8_t* in, float* out, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const uint8_t* block = in + i / 32 * 20;
    const int both = block[4 + i % 32 / 2];
    const int number = i % 2 ? both >> 4 : both & 0x0F;
    out[i] = *reinterpret_cast<const float*>(block) * (number - 8);
}

// A block for each row.
static __global__ void __launch_bounds__(256) soft_max(const float* in, float* out) {
    __shared__ float part[256];
    const float mine = in[blockIdx.x * 256 + threadIdx.x];
    part[threadIdx.x] = mine;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
    }
    __syncthreads();
    const float weight = expf(mine - part[0]);
    __syncthreads();
    part[threadIdx.x] = weight;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    __syncthreads();
    out[blockIdx.x * 256 + threadIdx.x] = weight / part[0];
}

// A warp for each row.
static __global__ void rms_norm(const float* in, float* out) {
    const int row = blockIdx.x * 256;
    float sum = 0;
    for (int i = threadIdx.x; i < 256; i += 32) sum += in[row + i] * in[row + i];
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffff, sum, other);
    const float scale = rsqrtf(sum / 256);
    for (int i = threadIdx.x; i < 256; i += 32) out[row + i] = in[row + i] * scale;
}

// A block for each row, whose first warp adds.
static __global__ void __launch_bounds__(256) l2_norm(const float* in, float* out) {
    __shared__ float length;
    const int row = blockIdx.x * 256;
    if (threadIdx.x < 32) {
        float sum = 0;
        for (int i = threadIdx.x; i < 256; i += 32) sum += in[row + i] * in[row + i];
        for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffff, sum, other);
        if (threadIdx.x == 0) length = sqrtf(sum);
    }
    __syncthreads();
    out[row + threadIdx.x] = in[row + threadIdx.x] / length;
}

static __global__ void cpy(const float* in, float* out, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i];
}

// A warp for each row.
static __global__ void squares(const float* in, float* out) {
    float sum = 0;
    for (int i = threadIdx.x; i < 4096; i += 32) {
        const float each = in[blockIdx.x * 4096 + i];
        sum += each * each;
    }
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffff, sum, other);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

static __global__ void sum_mxfp4(const uint8_t* in, float* out, int count) {
    const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const uint8_t* block = in + i * 17;
    float sum = 0;
    for (int j = 0; j < 32; ++j) {
        const int code = j % 2 ? block[1 + j / 2] >> 4 : block[1 + j / 2] & 15;
        sum += code & 8 ? -values[code & 7] : values[code & 7];
    }
    const float scale = exp2f(block[0] - 127);
    out[i] = scale * sum;
}

void compute(ggml_op op, const void* in, float* out, int count) {
    const auto* bytes = static_cast<const uint8_t*>(in);
    const auto* floats = static_cast<const float*>(in);
    const int blocks = (count + 127) / 128;
    switch (op) {
        case GGML_OP_GET_ROWS: dequantize_q4<<<blocks, 128>>>(bytes, out, count); break;
        case GGML_OP_SOFT_MAX: soft_max<<<count / 256, 256>>>(floats, out); break;
        case GGML_OP_RMS_NORM: rms_norm<<<count / 256, 32>>>(floats, out); break;
        case GGML_OP_L2_NORM: l2_norm<<<count / 256, 256>>>(floats, out); break;
        case GGML_OP_CPY:
        case GGML_OP_CPY_TURBO3: cpy<<<blocks, 128>>>(floats, out, count); break;
        case GGML_OP_MUL_MAT: squares<<<count, 32>>>(floats, out); break;
        case GGML_OP_MUL_MAT_MXFP4: sum_mxfp4<<<blocks, 128>>>(bytes, out, count); break;
    }
    check(cudaGetLastError());
}

}  // namespace ggml_cuda
