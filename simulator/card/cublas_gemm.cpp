// Matrix products of cuBLAS: the arguments are checked as the library checks them, and that each
// matrix lies in memory of a card; computed in mode compute.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "cublas_handle.h"
#include "memory.h"
#include "products.h"
#include "streams.h"

using namespace simulator;

namespace {

using simulator::Matrix;

// C = alpha * op(A) * op(B) + beta * C, where C has m rows and n columns.
struct Gemm {
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

// The computation whose row of the table holds: pedantic and faster ones have the plain one's.
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

bool supported(const Gemm& product) {
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
std::string wrong_size(const Gemm& p) {
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0) return "a size below zero";
    if (p.alpha == nullptr || p.beta == nullptr) return "alpha or beta is null";
    const std::int64_t rows_a = p.transa == CUBLAS_OP_N ? p.m : p.k;
    const std::int64_t rows_b = p.transb == CUBLAS_OP_N ? p.k : p.n;
    if (p.a.leading < std::max<std::int64_t>(1, rows_a)) return too_small("a", p.a.leading, rows_a);
    if (p.b.leading < std::max<std::int64_t>(1, rows_b)) return too_small("b", p.b.leading, rows_b);
    if (p.c.leading < std::max<std::int64_t>(1, p.m)) return too_small("c", p.c.leading, p.m);
    return "";
}

// The matrix that the card would read or write beyond its memory; empty: none.
std::string outside(const Gemm& p) {
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

// A graph that is captured gets a node; on a stream it is done now, in mode compute.
cublasStatus_t done(const char* function, cublasHandle_t handle,
                    std::function<cudaError_t()> compute) {
    EmptyWork work;
    if (computes()) work.compute = std::move(compute);
    const cudaError_t error = submit(handle->stream, std::move(work));
    if (error == cudaSuccess) return CUBLAS_STATUS_SUCCESS;
    return refuse(function, CUBLAS_STATUS_EXECUTION_FAILED,
                  std::string("on the handle's stream: ") + error_name(error));
}

// A matrix of the batch that leaves its memory: known when the arrays of addresses are read.
std::string outside_in_batch(const Gemm& p) {
    for (std::int64_t number = 0; p.pointers && number < p.batch; ++number) {
        Gemm one = p;
        one.pointers = false;
        one.batch = 1;
        for (Matrix* const matrix : {&one.a, &one.b, &one.c}) {
            matrix->data = static_cast<const void* const*>(matrix->data)[number];
        }
        if (const std::string why = outside(one); !why.empty()) {
            return "matrix " + std::to_string(number) + " of the batch: " + why;
        }
    }
    return "";
}

// A number as the library reads it: on the host at the call, on the card when the work is done.
class Factor {
public:
    Factor(const void* data, cudaDataType type, cublasHandle_t handle) : data_(data), type_(type) {
        const bool on_host = handle->pointer_mode == CUBLAS_POINTER_MODE_HOST;
        if (on_host) std::memcpy(copy_.data(), data, element_size(type));
        if (on_host) data_ = nullptr;
    }
    Scalar scalar() const { return {data_ == nullptr ? copy_.data() : data_, type_}; }

private:
    const void* data_;
    cudaDataType type_;
    std::array<unsigned char, 16> copy_{};
};

struct Precision {
    Sums sums;
    cudaDataType scale;  // of alpha and beta
};

// The table of cuBLAS's documentation, "cublasGemmEx()". Faster computations may use less precise
// factors; they need not.
Precision precision_of(const Gemm& p) {
    switch (row_of(p.compute)) {
        case CUBLAS_COMPUTE_16F: return {Sums::half, CUDA_R_16F};
        case CUBLAS_COMPUTE_64F: return {Sums::twice, CUDA_R_64F};
        case CUBLAS_COMPUTE_32I: return {Sums::integer, CUDA_R_32I};
        default: return {Sums::single, CUDA_R_32F};
    }
}

cublasStatus_t submit_product(const Gemm& p) {
    const Precision precision = precision_of(p);
    simulator::Product product{.transa = p.transa != CUBLAS_OP_N,
                               .transb = p.transb != CUBLAS_OP_N,
                               .m = p.m,
                               .n = p.n,
                               .k = p.k,
                               .a = p.a,
                               .b = p.b,
                               .c = p.c,
                               .d = p.c,
                               .sums = precision.sums,
                               .batch = p.batch,
                               .pointers = p.pointers};
    if (const std::string why = not_computed(product); computes() && !why.empty()) {
        return refuse(p.function, CUBLAS_STATUS_NOT_SUPPORTED, why);
    }
    const Factor alpha(p.alpha, precision.scale, p.handle), beta(p.beta, precision.scale, p.handle);
    return done(p.function, p.handle, [p, product, alpha, beta]() mutable {
        if (const std::string why = outside_in_batch(p); !why.empty()) {
            refuse(p.function, CUBLAS_STATUS_EXECUTION_FAILED, why);
            return cudaErrorIllegalAddress;
        }
        product.alpha = alpha.scalar();
        product.beta = beta.scalar();
        compute(product);
        return cudaSuccess;
    });
}

cublasStatus_t multiply(const Gemm& product) {
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
    return submit_product(product);
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
    if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
    const std::int64_t from = trans == CUBLAS_OP_N ? n : m, to = trans == CUBLAS_OP_N ? m : n;
    const auto bytes = [](std::int64_t count, std::int64_t step) {
        return ((count - 1) * std::abs(step) + 1) * sizeof(float);
    };
    if (!reachable(a, (lda * (n - 1) + m) * sizeof *a) || !reachable(x, bytes(from, incx)) ||
        !reachable(y, bytes(to, incy))) {
        return refuse(function, CUBLAS_STATUS_EXECUTION_FAILED,
                      "A, x or y is not in memory that the card can reach");
    }
    // With a negative step, a vector begins at its end. As a product, x and y are rows.
    if (incx < 0) x += (from - 1) * -incx;
    if (incy < 0) y += (to - 1) * -incy;
    simulator::Product product{.transa = false,
                               .transb = trans == CUBLAS_OP_N,
                               .m = 1,
                               .n = to,
                               .k = from,
                               .a = {x, CUDA_R_32F, incx},
                               .b = {a, CUDA_R_32F, lda},
                               .c = {y, CUDA_R_32F, incy},
                               .d = {y, CUDA_R_32F, incy}};
    const Factor scale(alpha, CUDA_R_32F, handle), keep(beta, CUDA_R_32F, handle);
    return done(function, handle, [product, scale, keep]() mutable {
        product.alpha = scale.scalar();
        product.beta = keep.scalar();
        compute(product);
        return cudaSuccess;
    });
}

// op(A) * X = alpha * B or X * op(A) = alpha * B, for each of a batch; X replaces B.
cublasStatus_t solve(const char* function, cublasHandle_t handle, cublasSideMode_t side,
                     cublasFillMode_t fill, cublasOperation_t trans, cublasDiagType_t diagonal,
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
    Triangle triangle{.left = side == CUBLAS_SIDE_LEFT,
                      .upper = fill == CUBLAS_FILL_MODE_UPPER,
                      .transposed = trans != CUBLAS_OP_N,
                      .unit = diagonal == CUBLAS_DIAG_UNIT,
                      .m = m,
                      .n = n,
                      .a = a,
                      .lda = lda,
                      .b = b,
                      .ldb = ldb,
                      .batch = batch};
    const Factor scale(alpha, CUDA_R_32F, handle);
    return done(function, handle, [function, order, triangle, scale]() mutable {
        for (std::int64_t number = 0; number < triangle.batch; ++number) {
            const std::int64_t in_a = triangle.lda * (order - 1) + order;
            const std::int64_t in_b = triangle.ldb * (triangle.n - 1) + triangle.m;
            if (reachable(triangle.a[number], in_a * sizeof(float)) &&
                reachable(triangle.b[number], in_b * sizeof(float))) {
                continue;
            }
            refuse(function, CUBLAS_STATUS_EXECUTION_FAILED,
                   "A or B of matrix " + std::to_string(number) +
                       " of the batch is not in memory that the card can reach");
            return cudaErrorIllegalAddress;
        }
        triangle.alpha = static_cast<const float*>(scale.scalar().data);
        compute(triangle);
        return cudaSuccess;
    });
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
        cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill,                      \
        cublasOperation_t trans, cublasDiagType_t diagonal, SIZE m, SIZE n, const float* alpha,   \
        const float* const A[], SIZE lda, float* const B[], SIZE ldb, SIZE batch) {               \
        SIMULATED();                                                                              \
        return solve(__func__, handle, side, fill, trans, diagonal, m, n, alpha, A, lda, B, ldb,  \
                     batch);                                                                      \
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
