// vec_dot of each quantization on n rows of K=4096 weights against one q8_1 vector
#include "common.cuh"
#include "vecdotq.cuh"
typedef float (*vec_dot_q_cuda_t)(const void*, const block_q8_1*, const int&, const int&);
template <int qk, int qi, int vdr, typename block_q_t, vec_dot_q_cuda_t f>
static __device__ void rows(const void* x, const block_q8_1* y, float* out, int nblocks) {
    // thread per row: loops as mmvq does
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int b = 0; b < nblocks; ++b)
        for (int iqs = 0; iqs < qi; iqs += vdr)
            sum += f(x, y + b * (qk / QK8_1), row * nblocks + b, iqs);
    out[row] = sum;
}
#define K(name, qk, qi, vdr, type) extern "C" __global__ void name(const void* x, const block_q8_1* y, float* out, int nblocks) { rows<qk, qi, vdr, type, vec_dot_##name##_q8_1>(x, y, out, nblocks); }
K(q4_0, QK4_0, QI4_0, VDR_Q4_0_Q8_1_MMVQ, block_q4_0)
K(q4_1, QK4_1, QI4_1, VDR_Q4_1_Q8_1_MMVQ, block_q4_1)
K(q5_0, QK5_0, QI5_0, VDR_Q5_0_Q8_1_MMVQ, block_q5_0)
K(q5_1, QK5_1, QI5_1, VDR_Q5_1_Q8_1_MMVQ, block_q5_1)
K(q8_0, QK8_0, QI8_0, VDR_Q8_0_Q8_1_MMVQ, block_q8_0)
K(q2_K, QK_K, QI2_K, VDR_Q2_K_Q8_1_MMVQ, block_q2_K)
K(q3_K, QK_K, QI3_K, VDR_Q3_K_Q8_1_MMVQ, block_q3_K)
K(q4_K, QK_K, QI4_K, VDR_Q4_K_Q8_1_MMVQ, block_q4_K)
K(q5_K, QK_K, QI5_K, VDR_Q5_K_Q8_1_MMVQ, block_q5_K)
K(q6_K, QK_K, QI6_K, VDR_Q6_K_Q8_1_MMVQ, block_q6_K)
K(iq1_s, QK_K, QI1_S, VDR_IQ1_S_Q8_1_MMVQ, block_iq1_s)
K(iq1_m, QK_K, QI1_M, VDR_IQ1_M_Q8_1_MMVQ, block_iq1_m)
K(iq2_xxs, QK_K, QI2_XXS, VDR_IQ2_XXS_Q8_1_MMVQ, block_iq2_xxs)
K(iq2_xs, QK_K, QI2_XS, VDR_IQ2_XS_Q8_1_MMVQ, block_iq2_xs)
K(iq2_s, QK_K, QI2_S, VDR_IQ2_S_Q8_1_MMVQ, block_iq2_s)
K(iq3_xxs, QK_K, QI3_XXS, VDR_IQ3_XXS_Q8_1_MMVQ, block_iq3_xxs)
K(iq3_s, QK_K, QI3_S, VDR_IQ3_S_Q8_1_MMVQ, block_iq3_s)
K(iq4_nl, QK4_NL, QI4_NL, VDR_IQ4_NL_Q8_1_MMVQ, block_iq4_nl)
K(iq4_xs, QK_K, QI4_XS, VDR_IQ4_XS_Q8_1_MMVQ, block_iq4_xs)
K(mxfp4, QK_MXFP4, QI_MXFP4, VDR_MXFP4_Q8_1_MMVQ, block_mxfp4)
K(nvfp4, QK_NVFP4, QI_NVFP4, VDR_NVFP4_Q8_1_MMVQ, block_nvfp4)
