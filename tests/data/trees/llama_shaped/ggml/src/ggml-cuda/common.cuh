// Kernels, and the memory that they work on.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <stdexcept>

#include "ggml.h"

namespace ggml_cuda {

// Some call of CUDA's failed; the text is CUDA's.
class failure : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

inline void check(cudaError_t error) {
    if (error != cudaSuccess) throw failure(cudaGetErrorString(error));
}

// Floats on the current device: pages that are mapped where the device can, else cudaMalloc's.
class device_buffer {
public:
    explicit device_buffer(std::size_t count);
    ~device_buffer();
    device_buffer(const device_buffer&) = delete;
    device_buffer& operator=(const device_buffer&) = delete;

    float* get() const { return static_cast<float*>(data_); }
    void upload(const float* from, std::size_t count) const;
    void download(float* to, std::size_t count) const;

private:
    void* data_ = nullptr;
    std::size_t mapped_ = 0;  // bytes; 0 where cudaMalloc gave them
};

// values *= factor
void scale(float* values, float factor, int count);

// out = the mean of the values, weighted by the softmax of the scores
void weighted_mean(const float* scores, const float* values, float* out, int head, int count);

// As ggml_compute_t says; `in` and `out` are on the device.
void compute(ggml_op op, const void* in, float* out, int count);

}  // namespace ggml_cuda
