// The parts of ggml's common.cuh that its quantization kernels stand on, for three types.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#define QK8_1 32

enum ggml_type { GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0 };

struct block_q8_1 {
    half2 ds;
    int8_t qs[QK8_1];
};
struct block_q4_0 {
    half d;
    uint8_t qs[16];
};
struct block_q4_1 {
    half d, m;
    uint16_t qs[8];
};
struct block_q8_0 {
    half d;
    int8_t qs[32];
};

template <ggml_type type>
struct ggml_cuda_type_traits;
template <>
struct ggml_cuda_type_traits<GGML_TYPE_Q4_0> {
    static constexpr int qk = 32, qi = 4;
};
template <>
struct ggml_cuda_type_traits<GGML_TYPE_Q4_1> {
    static constexpr int qk = 32, qi = 4;
};
template <>
struct ggml_cuda_type_traits<GGML_TYPE_Q8_0> {
    static constexpr int qk = 32, qi = 8;
};
