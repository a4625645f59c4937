// Matrix products of cuBLAS: the arguments are checked as the library checks them, and that each
// matrix lies in memory of a card; nothing is computed.
#include <algorithm>
#include <cstdlib>

#include "cublas_handle.h"
#include "memory.h"
#include "streams.h"

using namespace simulator;

namespace {

struct Matrix {
    const void* data;      // the first element or, with `pointers`, an array of such
    cudaDataType type;
    std::int64_t leading;  // elements from one column to the next
    std::int64_t stride = 0;  // elements from one matrix of the batch to the next
};

// C = alpha * op(A) * op(B) + beta * C, where C has m rows and n columns.
struct Product {
    const char* function;
    cublasHandle_t handle;
    cublasOperation_t transa, transb;
    std::int64_t m, n, k;
    const void *alpha, *beta;
    Matrix a, b, c;
    cublasComputeType_t compute;
    std::int64_t batch = 1;
    bool pointers = false;  // the matrices of a batch are given by arrays of addresses on the card
};

int element_size(cudaDataType type) {
    switch (type) {
        case CUDA_R_8I: return 1;
        case CUDA_R_16F:
        case CUDA_R_16BF:
        case CUDA_C_8I: return 2;
        case CUDA_R_32F:
        case CUDA_R_32I: return 4;
        case CUDA_R_64F:
        case CUDA_C_32F: return 8;
        case CUDA_C_64F: return 16;
        default: return 0;
    }
}

// What a computation may read and write: the table of cuBLAS's documentation, "cublasGemmEx()".
struct Combination {
    cublasComputeType_t compute;
    cudaDataType factors, result;
};

constexpr Combination kCombinations[] = {
    {CUBLAS_COMPUTE_16F, CUDA_R_16F, CUDA_R_16F},
    {CUBLAS_COMPUTE_32I, CUDA_R_8I, CUDA_R_32I},
    {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8I, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_C_8I, CUDA_C_32F},
    {CUBLAS_COMPUTE_32F, CUDA_C_32F, CUDA_C_32F},
    {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_C_32F, CUDA_C_32F},
    {CUBLAS_COMPUTE_64F, CUDA_R_64F, CUDA_R_64F},
    {CUBLAS_COMPUTE_64F, CUDA_C_64F, CUDA_C_64F},
};

// The computation whose row of the table holds: pedantic and faster ones have those of the plain.
cublasComputeType_t row_of(cublasComputeType_t compute) {
    switch (compute) {
        case CUBLAS_COMPUTE_16F_PEDANTIC: return CUBLAS_COMPUTE_16F;
        case CUBLAS_COMPUTE_32F_PEDANTIC: return CUBLAS_COMPUTE_32F;
        case CUBLAS_COMPUTE_64F_PEDANTIC: return CUBLAS_COMPUTE_64F;
        case CUBLAS_COMPUTE_32I_PEDANTIC: return CUBLAS_COMPUTE_32I;
        case CUBLAS_COMPUTE_32F_FAST_16F:
        case CUBLAS_COMPUTE_32F_FAST_16BF: return CUBLAS_COMPUTE_32F_FAST_TF32;
        default: return static_cast<int>(compute) == 78 ? CUBLAS_COMPUTE_32F_FAST_TF32 : compute;
    }
}

bool supported(const Product& product) {
    if (product.a.type != product.b.type) return false;
    for (const Combination& known : kCombinations) {
        if (known.compute == row_of(product.compute) && known.factors == product.a.type &&
            known.result == product.c.type) {
            return true;
        }
    }
    return false;
}

std::string too_small(const char* name, std::int64_t leading, std::int64_t rows) {
    return std::string("ld") + name + " is " + std::to_string(leading) + ", less than " +
           std::to_string(rows) + " rows";
}

// What the library refuses with CUBLAS_STATUS_INVALID_VALUE; empty: nothing.
std::string wrong_size(const Product& p) {
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0) return "a size below zero";
    if (p.alpha == nullptr || p.beta == nullptr) return "alpha or beta is null";
    const std::int64_t rows_a = p.transa == CUBLAS_OP_N ? p.m : p.k;
    const std::int64_t rows_b = p.transb == CUBLAS_OP_N ? p.k : p.n;
    if (p.a.leading < std::max<std::int64_t>(1, rows_a)) return too_small("a", p.a.leading, rows_a);
    if (p.b.leading < std::max<std::int64_t>(1, rows_b)) return too_small("b", p.b.leading, rows_b);
    if (p.c.leading < std::max<std::int64_t>(1, p.m)) return too_small("c", p.c.leading, p.m);
    return "";
}

// Whether all these bytes are in memory that a card can reach: one allocation, or mappings that
// follow each other.
bool reachable(const void* data, std::uint64_t size) {
    auto at = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t end = at + size;
    Range range;
    while (at < end) {
        if (!find_range(reinterpret_cast<const void*>(at), &range)) return false;
        if (range.address + range.size <= at) return false;
        at = range.address + range.size;
    }
    return true;
}

// The matrix that the card would read or write beyond its memory; empty: none.
std::string outside(const Product& p) {
    if (p.m == 0 || p.n == 0 || p.batch == 0) return "";
    struct Use {
        const char* name;
        const Matrix& matrix;
        std::int64_t rows, columns;
    };
    const bool plain_a = p.transa == CUBLAS_OP_N, plain_b = p.transb == CUBLAS_OP_N;
    const Use uses[] = {{"A", p.a, plain_a ? p.m : p.k, plain_a ? p.k : p.m},
                        {"B", p.b, plain_b ? p.k : p.n, plain_b ? p.n : p.k},
                        {"C", p.c, p.m, p.n}};
    for (const Use& use : uses) {
        if (use.rows == 0 || use.columns == 0) continue;
        std::int64_t elements = use.matrix.leading * (use.columns - 1) + use.rows;
        int size = element_size(use.matrix.type);
        if (p.pointers) {
            elements = p.batch;
            size = sizeof(void*);
        } else {
            elements += use.matrix.stride * (p.batch - 1);
        }
        if (!reachable(use.matrix.data, static_cast<std::uint64_t>(elements) * size)) {
            return std::string(use.name) + ", " + std::to_string(elements * size) +
                   " bytes, is not in memory that the card can reach";
        }
    }
    return "";
}

// A graph that is captured gets a node; on a stream there is nothing to do.
cublasStatus_t done(const char* function, cublasHandle_t handle) {
    if (submit(handle->stream, EmptyWork{}) == cudaSuccess) return CUBLAS_STATUS_SUCCESS;
    return refuse(function, CUBLAS_STATUS_EXECUTION_FAILED, "the handle's stream is gone");
}

cublasStatus_t multiply(const Product& product) {
    const char* const function = product.function;
    if (!is_handle(product.handle)) {
        return refuse(function, CUBLAS_STATUS_NOT_INITIALIZED, "not a handle");
    }
    if (const std::string why = wrong_size(product); !why.empty()) {
        return refuse(function, CUBLAS_STATUS_INVALID_VALUE, why);
    }
    if (!supported(product)) {
        return refuse(function, CUBLAS_STATUS_NOT_SUPPORTED,
                      "A has type " + std::to_string(product.a.type) + ", B " +
                          std::to_string(product.b.type) + ", C " +
                          std::to_string(product.c.type) + ", with computation " +
                          std::to_string(product.compute));
    }
    if (const std::string why = outside(product); !why.empty()) {
        return refuse(function, CUBLAS_STATUS_EXECUTION_FAILED, why);
    }
    return done(function, product.handle);
}

// y = alpha * op(A) * x + beta * y, where A has m rows and n columns; floats.
cublasStatus_t transform(const char* function, cublasHandle_t handle, cublasOperation_t trans,
                         std::int64_t m, std::int64_t n, const float* alpha, const float* a,
                         std::int64_t lda, const float* x, std::int64_t incx, const float* beta,
                         const float* y, std::int64_t incy) {
    if (!is_handle(handle)) {
        return refuse(function, CUBLAS_STATUS_NOT_INITIALIZED, "not a handle");
    }
    std::string why;
    if (m < 0 || n < 0) why = "a size below zero";
    else if (alpha == nullptr || beta == nullptr) why = "alpha or beta is null";
    else if (lda < std::max<std::int64_t>(1, m)) why = too_small("a", lda, m);
    else if (incx == 0 || incy == 0) why = "incx or incy is zero";
    if (!why.empty()) return refuse(function, CUBLAS_STATUS_INVALID_VALUE, why);
    if (m == 0 || n == 0) return done(function, handle);
    const std::int64_t from = trans == CUBLAS_OP_N ? n : m, to = trans == CUBLAS_OP_N ? m : n;
    const auto bytes = [](std::int64_t count, std::int64_t step) {
        return ((count - 1) * std::abs(step) + 1) * sizeof(float);
    };
    if (!reachable(a, (lda * (n - 1) + m) * sizeof *a) || !reachable(x, bytes(from, incx)) ||
        !reachable(y, bytes(to, incy))) {
        return refuse(function, CUBLAS_STATUS_EXECUTION_FAILED,
                      "A, x or y is not in memory that the card can reach");
    }
    return done(function, handle);
}

// op(A) * X = alpha * B or X * op(A) = alpha * B, for each of a batch; X replaces B.
cublasStatus_t solve(const char* function, cublasHandle_t handle, cublasSideMode_t side,
                     std::int64_t m, std::int64_t n, const float* alpha, const float* const* a,
                     std::int64_t lda, float* const* b, std::int64_t ldb, std::int64_t batch) {
    if (!is_handle(handle)) {
        return refuse(function, CUBLAS_STATUS_NOT_INITIALIZED, "not a handle");
    }
    const std::int64_t order = side == CUBLAS_SIDE_LEFT ? m : n;
    std::string why;
    if (m < 0 || n < 0 || batch < 0) why = "a size below zero";
    else if (alpha == nullptr) why = "alpha is null";
    else if (lda < std::max<std::int64_t>(1, order)) why = too_small("a", lda, order);
    else if (ldb < std::max<std::int64_t>(1, m)) why = too_small("b", ldb, m);
    if (!why.empty()) return refuse(function, CUBLAS_STATUS_INVALID_VALUE, why);
    if (!reachable(a, batch * sizeof *a) || !reachable(b, batch * sizeof *b)) {
        return refuse(function, CUBLAS_STATUS_EXECUTION_FAILED,
                      "an array of addresses is not in memory that the card can reach");
    }
    return done(function, handle);
}

}  // namespace

// The functions differ in the type of their sizes (int, and int64_t with the suffix _64) and in
// whether a batch is given by strides or by arrays of addresses.

#define TYPED_GEMM(LETTER, TYPE, ELEMENT, COMPUTE, SUFFIX, SIZE)                                  \
    cublasStatus_t cublas##LETTER##gemm##SUFFIX(                                                  \
        cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, SIZE m,        \
        SIZE n, SIZE k, const TYPE* alpha, const TYPE* A, SIZE lda, const TYPE* B, SIZE ldb,      \
        const TYPE* beta, TYPE* C, SIZE ldc) {                                                    \
        SIMULATED();                                                                              \
        return multiply({__func__, handle, transa, transb, m, n, k, alpha, beta,                  \
                         {A, ELEMENT, lda}, {B, ELEMENT, ldb}, {C, ELEMENT, ldc}, COMPUTE});      \
    }

#define TYPED_GEMM_BATCHED(LETTER, TYPE, ELEMENT, COMPUTE, SUFFIX, SIZE)                          \
    cublasStatus_t cublas##LETTER##gemmBatched##SUFFIX(                                           \
        cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, SIZE m,        \
        SIZE n, SIZE k, const TYPE* alpha, const TYPE* const A[], SIZE lda,                       \
        const TYPE* const B[], SIZE ldb, const TYPE* beta, TYPE* const C[], SIZE ldc,             \
        SIZE batch) {                                                                             \
        SIMULATED();                                                                              \
        return multiply({__func__, handle, transa, transb, m, n, k, alpha, beta,                  \
                         {A, ELEMENT, lda}, {B, ELEMENT, ldb}, {C, ELEMENT, ldc}, COMPUTE,        \
                         batch, true});                                                           \
    }                                                                                             \
    cublasStatus_t cublas##LETTER##gemmStridedBatched##SUFFIX(                                    \
        cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, SIZE m,        \
        SIZE n, SIZE k, const TYPE* alpha, const TYPE* A, SIZE lda, long long strideA,            \
        const TYPE* B, SIZE ldb, long long strideB, const TYPE* beta, TYPE* C, SIZE ldc,          \
        long long strideC, SIZE batch) {                                                          \
        SIMULATED();                                                                              \
        return multiply({__func__, handle, transa, transb, m, n, k, alpha, beta,                  \
                         {A, ELEMENT, lda, strideA}, {B, ELEMENT, ldb, strideB},                  \
                         {C, ELEMENT, ldc, strideC}, COMPUTE, batch});                            \
    }

#define EX_GEMM(SUFFIX, SIZE)                                                                     \
    cublasStatus_t cublasGemmEx##SUFFIX(                                                          \
        cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, SIZE m,        \
        SIZE n, SIZE k, const void* alpha, const void* A, cudaDataType Atype, SIZE lda,           \
        const void* B, cudaDataType Btype, SIZE ldb, const void* beta, void* C,                   \
        cudaDataType Ctype, SIZE ldc, cublasComputeType_t compute, cublasGemmAlgo_t) {            \
        SIMULATED();                                                                              \
        return multiply({__func__, handle, transa, transb, m, n, k, alpha, beta,                  \
                         {A, Atype, lda}, {B, Btype, ldb}, {C, Ctype, ldc}, compute});            \
    }                                                                                             \
    cublasStatus_t cublasGemmBatchedEx##SUFFIX(                                                   \
        cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, SIZE m,        \
        SIZE n, SIZE k, const void* alpha, const void* const A[], cudaDataType Atype, SIZE lda,   \
        const void* const B[], cudaDataType Btype, SIZE ldb, const void* beta, void* const C[],   \
        cudaDataType Ctype, SIZE ldc, SIZE batch, cublasComputeType_t compute,                    \
        cublasGemmAlgo_t) {                                                                       \
        SIMULATED();                                                                              \
        return multiply({__func__, handle, transa, transb, m, n, k, alpha, beta,                  \
                         {A, Atype, lda}, {B, Btype, ldb}, {C, Ctype, ldc}, compute, batch,       \
                         true});                                                                  \
    }                                                                                             \
    cublasStatus_t cublasGemmStridedBatchedEx##SUFFIX(                                            \
        cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, SIZE m,        \
        SIZE n, SIZE k, const void* alpha, const void* A, cudaDataType Atype, SIZE lda,           \
        long long strideA, const void* B, cudaDataType Btype, SIZE ldb, long long strideB,        \
        const void* beta, void* C, cudaDataType Ctype, SIZE ldc, long long strideC, SIZE batch,   \
        cublasComputeType_t compute, cublasGemmAlgo_t) {                                          \
        SIMULATED();                                                                              \
        return multiply({__func__, handle, transa, transb, m, n, k, alpha, beta,                  \
                         {A, Atype, lda, strideA}, {B, Btype, ldb, strideB},                      \
                         {C, Ctype, ldc, strideC}, compute, batch});                              \
    }

#define MATRIX_VECTOR(SUFFIX, SIZE)                                                               \
    cublasStatus_t cublasSgemv##SUFFIX(                                                           \
        cublasHandle_t handle, cublasOperation_t trans, SIZE m, SIZE n, const float* alpha,       \
        const float* A, SIZE lda, const float* x, SIZE incx, const float* beta, float* y,         \
        SIZE incy) {                                                                              \
        SIMULATED();                                                                              \
        return transform(__func__, handle, trans, m, n, alpha, A, lda, x, incx, beta, y, incy);   \
    }

#define TRIANGULAR_SOLVE(SUFFIX, SIZE)                                                            \
    cublasStatus_t cublasStrsmBatched##SUFFIX(                                                    \
        cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t, cublasOperation_t,        \
        cublasDiagType_t, SIZE m, SIZE n, const float* alpha, const float* const A[], SIZE lda,   \
        float* const B[], SIZE ldb, SIZE batch) {                                                 \
        SIMULATED();                                                                              \
        return solve(__func__, handle, side, m, n, alpha, A, lda, B, ldb, batch);                 \
    }

extern "C" {

TYPED_GEMM(S, float, CUDA_R_32F, CUBLAS_COMPUTE_32F, _v2, int)
TYPED_GEMM(S, float, CUDA_R_32F, CUBLAS_COMPUTE_32F, _v2_64, std::int64_t)
TYPED_GEMM(D, double, CUDA_R_64F, CUBLAS_COMPUTE_64F, _v2, int)
TYPED_GEMM(D, double, CUDA_R_64F, CUBLAS_COMPUTE_64F, _v2_64, std::int64_t)
TYPED_GEMM(H, __half, CUDA_R_16F, CUBLAS_COMPUTE_16F, , int)
TYPED_GEMM(H, __half, CUDA_R_16F, CUBLAS_COMPUTE_16F, _64, std::int64_t)
TYPED_GEMM_BATCHED(S, float, CUDA_R_32F, CUBLAS_COMPUTE_32F, , int)
TYPED_GEMM_BATCHED(S, float, CUDA_R_32F, CUBLAS_COMPUTE_32F, _64, std::int64_t)
TYPED_GEMM_BATCHED(D, double, CUDA_R_64F, CUBLAS_COMPUTE_64F, , int)
TYPED_GEMM_BATCHED(D, double, CUDA_R_64F, CUBLAS_COMPUTE_64F, _64, std::int64_t)
TYPED_GEMM_BATCHED(H, __half, CUDA_R_16F, CUBLAS_COMPUTE_16F, , int)
TYPED_GEMM_BATCHED(H, __half, CUDA_R_16F, CUBLAS_COMPUTE_16F, _64, std::int64_t)
EX_GEMM(, int)
EX_GEMM(_64, std::int64_t)
MATRIX_VECTOR(_v2, int)
MATRIX_VECTOR(_v2_64, std::int64_t)
TRIANGULAR_SOLVE(, int)
TRIANGULAR_SOLVE(_64, std::int64_t)

}  // extern "C"
