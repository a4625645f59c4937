// Products of matrices, as cuBLAS and cuBLASLt are asked for them; computed in mode compute.
#pragma once

#include <library_types.h>

#include <string>

#include "simulator.h"

namespace simulator {

// A matrix in column-major order, or a batch of them.
struct Matrix {
    const void* data = nullptr;  // the first element or, with `pointers`, an array of such
    cudaDataType type = CUDA_R_32F;
    std::int64_t leading = 0;  // elements from one column to the next
    std::int64_t stride = 0;   // elements from one matrix of the batch to the next
};

// In bytes; 0: not known.
SIMULATOR_API int element_size(cudaDataType type);

// A number as the library's scale types have it.
struct Scalar {
    const void* data = nullptr;
    cudaDataType type = CUDA_R_32F;
};

// In what sums are kept. Half: products are exact, and every 16 of them are added in single
// precision before the sum is rounded, as tensor cores that accumulate in half precision are
// thought to do; NVIDIA does not document the order.
enum class Sums { half, single, twice, integer };

// D = alpha * op(A) * op(B) + beta * C, where D has m rows and n columns.
struct Product {
    bool transa = false, transb = false;
    std::int64_t m = 0, n = 0, k = 0;
    Scalar alpha, beta;  // read when the product is computed
    Matrix a, b, c, d;
    Sums sums = Sums::single;
    std::int64_t batch = 1;
    bool pointers = false;  // the matrices of a batch are given by arrays of addresses
};

// Why a product cannot be computed: complex numbers, say; empty: it can.
SIMULATOR_API std::string not_computed(const Product& product);
SIMULATOR_API void compute(const Product& product);

// X of op(A) * X = alpha * B, or of X * op(A) = alpha * B, for each of a batch; X replaces B. A is
// triangular.
struct Triangle {
    bool left = false, upper = false, transposed = false, unit = false;
    std::int64_t m = 0, n = 0;
    const float* alpha = nullptr;
    const float* const* a = nullptr;
    std::int64_t lda = 0;
    float* const* b = nullptr;
    std::int64_t ldb = 0, batch = 0;
};
SIMULATOR_API void compute(const Triangle& triangle);

}  // namespace simulator
