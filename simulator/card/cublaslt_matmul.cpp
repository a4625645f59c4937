// cuBLASLt: descriptors hold what the program sets; products are checked, and computed in mode
// compute.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "memory.h"
#include "products.h"
#include "refusals.h"
#include "streams.h"

SIMULATED_LIBRARY()

struct cublasLtContext {};

using namespace simulator;

namespace {

using Bytes = std::vector<unsigned char>;

// The attributes of every descriptor, by the descriptor's address: programs place some themselves.
std::map<const void*, std::map<int, Bytes>>& descriptors() {
    static auto* const all = new std::map<const void*, std::map<int, Bytes>>;
    return *all;
}

std::mutex& descriptors_mutex() {
    static auto* const only = new std::mutex;
    return *only;
}

template <class Value>
Bytes bytes_of(const Value& value) {
    const auto* const start = reinterpret_cast<const unsigned char*>(&value);
    return Bytes(start, start + sizeof value);
}

cublasStatus_t begin(const void* descriptor, std::map<int, Bytes> attributes) {
    if (descriptor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    const std::lock_guard lock(descriptors_mutex());
    descriptors()[descriptor] = std::move(attributes);
    return CUBLAS_STATUS_SUCCESS;
}

template <class Descriptor>
cublasStatus_t make(Descriptor** descriptor, std::map<int, Bytes> attributes) {
    if (descriptor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    *descriptor = new Descriptor{};
    return begin(*descriptor, std::move(attributes));
}

template <class Descriptor>
cublasStatus_t end(Descriptor* descriptor) {
    const std::lock_guard lock(descriptors_mutex());
    if (descriptors().erase(descriptor) == 0) return CUBLAS_STATUS_INVALID_VALUE;
    delete descriptor;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set(const void* descriptor, int attribute, const void* value, size_t size) {
    const std::lock_guard lock(descriptors_mutex());
    const auto found = descriptors().find(descriptor);
    if (found == descriptors().end() || value == nullptr || size == 0) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const auto* const start = static_cast<const unsigned char*>(value);
    found->second[attribute] = Bytes(start, start + size);
    return CUBLAS_STATUS_SUCCESS;
}

// An attribute that was not set is zero, the default of most.
cublasStatus_t get(const void* descriptor, int attribute, void* value, size_t size,
                   size_t* written) {
    const std::lock_guard lock(descriptors_mutex());
    const auto found = descriptors().find(descriptor);
    if (found == descriptors().end()) return CUBLAS_STATUS_INVALID_VALUE;
    const Bytes& bytes = found->second[attribute];
    if (written != nullptr) *written = bytes.size();
    if (size == 0 && written != nullptr) return CUBLAS_STATUS_SUCCESS;
    if (value == nullptr || size < bytes.size()) return CUBLAS_STATUS_INVALID_VALUE;
    std::memset(value, 0, size);
    if (!bytes.empty()) std::memcpy(value, bytes.data(), bytes.size());
    return CUBLAS_STATUS_SUCCESS;
}

std::uint64_t number(const void* descriptor, int attribute) {
    std::uint64_t value = 0;
    get(descriptor, attribute, &value, sizeof value, nullptr);
    return value;
}

std::map<int, Bytes> layout(cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                            std::int64_t leading) {
    return {{CUBLASLT_MATRIX_LAYOUT_TYPE, bytes_of(type)},
            {CUBLASLT_MATRIX_LAYOUT_ROWS, bytes_of(rows)},
            {CUBLASLT_MATRIX_LAYOUT_COLS, bytes_of(columns)},
            {CUBLASLT_MATRIX_LAYOUT_LD, bytes_of(leading)},
            {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, bytes_of(1)}};
}

std::map<int, Bytes> operation(cublasComputeType_t compute, cudaDataType_t scale) {
    return {{CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, bytes_of(compute)},
            {CUBLASLT_MATMUL_DESC_SCALE_TYPE, bytes_of(scale)}};
}

struct Shape {
    std::uint64_t rows, columns;
};

Shape shape(cublasLtMatrixLayout_t matrix, std::uint64_t transposed) {
    const Shape as_stored{number(matrix, CUBLASLT_MATRIX_LAYOUT_ROWS),
                          number(matrix, CUBLASLT_MATRIX_LAYOUT_COLS)};
    if (transposed == CUBLAS_OP_N) return as_stored;
    return {as_stored.columns, as_stored.rows};
}

// What does not fit together in a product; empty: nothing.
std::string wrong(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                  cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t d) {
    if (operation == nullptr || a == nullptr || b == nullptr || d == nullptr) {
        return "a descriptor is null";
    }
    const Shape left = shape(a, number(operation, CUBLASLT_MATMUL_DESC_TRANSA));
    const Shape right = shape(b, number(operation, CUBLASLT_MATMUL_DESC_TRANSB));
    const Shape made = shape(d, CUBLAS_OP_N);
    if (left.columns != right.rows || left.rows != made.rows || right.columns != made.columns) {
        const auto text = [](Shape s) {
            return std::to_string(s.rows) + "x" + std::to_string(s.columns);
        };
        return text(left) + " times " + text(right) + " does not make " + text(made);
    }
    return "";
}

Matrix matrix_of(const void* data, cublasLtMatrixLayout_t layout) {
    return {data, static_cast<cudaDataType>(number(layout, CUBLASLT_MATRIX_LAYOUT_TYPE)),
            static_cast<std::int64_t>(number(layout, CUBLASLT_MATRIX_LAYOUT_LD)),
            static_cast<std::int64_t>(number(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET))};
}

// The attributes of a descriptor that differ from their defaults and are not computed; empty: none.
std::string beyond(const void* descriptor, std::initializer_list<int> known,
                   std::initializer_list<std::pair<int, std::uint64_t>> defaults) {
    const std::lock_guard lock(descriptors_mutex());
    for (const auto& [attribute, bytes] : descriptors()[descriptor]) {
        if (std::ranges::find(known, attribute) != known.end()) continue;
        std::uint64_t value = 0;
        std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
        std::uint64_t usual = 0;
        for (const auto& [name, number] : defaults) {
            if (name == attribute) usual = number;
        }
        if (value != usual) {
            return "not computed: attribute " + std::to_string(attribute) + " is " +
                   std::to_string(value);
        }
    }
    return "";
}

std::string beyond(cublasLtMatmulDesc_t operation) {
    return beyond(operation,
                  {CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, CUBLASLT_MATMUL_DESC_SCALE_TYPE,
                   CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_MATMUL_DESC_TRANSA,
                   CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                   CUBLASLT_MATMUL_DESC_FAST_ACCUM},
                  {{CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT}});
}

std::string beyond(cublasLtMatrixLayout_t layout) {
    return beyond(layout,
                  {CUBLASLT_MATRIX_LAYOUT_TYPE, CUBLASLT_MATRIX_LAYOUT_ROWS,
                   CUBLASLT_MATRIX_LAYOUT_COLS, CUBLASLT_MATRIX_LAYOUT_LD,
                   CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                   CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET},
                  {{CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_ORDER_COL}});
}

bool on_card(const Matrix& matrix, cublasLtMatrixLayout_t layout) {
    const auto batch = std::max<std::uint64_t>(1, number(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT));
    const Shape size = shape(layout, CUBLAS_OP_N);
    const std::uint64_t elements = matrix.leading * (size.columns - 1) + size.rows +
                                   matrix.stride * (batch - 1);
    return reachable(matrix.data, elements * element_size(matrix.type));
}

Sums sums_of(std::uint64_t compute) {
    switch (compute) {
        case CUBLAS_COMPUTE_16F:
        case CUBLAS_COMPUTE_16F_PEDANTIC: return Sums::half;
        case CUBLAS_COMPUTE_64F:
        case CUBLAS_COMPUTE_64F_PEDANTIC: return Sums::twice;
        case CUBLAS_COMPUTE_32I:
        case CUBLAS_COMPUTE_32I_PEDANTIC: return Sums::integer;
        default: return Sums::single;
    }
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    SIMULATED();
    if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    if (use_card(current_card()) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasLtContext;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    SIMULATED();
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) {
    SIMULATED();
    return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void) {
    SIMULATED();
    return CUDART_VERSION;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* matrix, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
    SIMULATED();
    return make(matrix, layout(type, rows, columns, leading));
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t matrix, size_t,
                                                 cudaDataType type, uint64_t rows,
                                                 uint64_t columns, int64_t leading) {
    SIMULATED();
    return begin(matrix, layout(type, rows, columns, leading));
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matrix) {
    SIMULATED();
    return end(matrix);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matrix,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t size) {
    SIMULATED();
    return set(matrix, attribute, value, size);
}

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t matrix,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                void* value, size_t size, size_t* written) {
    SIMULATED();
    return get(matrix, attribute, value, size, written);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    SIMULATED();
    return make(made, operation(compute, scale));
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t made, size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
    SIMULATED();
    return begin(made, operation(compute, scale));
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) {
    SIMULATED();
    return end(made);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t made,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
    SIMULATED();
    return set(made, attribute, value, size);
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t made,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              void* value, size_t size, size_t* written) {
    SIMULATED();
    return get(made, attribute, value, size, written);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    SIMULATED();
    return make(preference, {});
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t) {
    SIMULATED();
    return begin(preference, {});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    SIMULATED();
    return end(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
    const void* value, size_t size) {
    SIMULATED();
    return set(preference, attribute, value, size);
}

// One algorithm, without a workspace: which one the library would take depends on the card.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t made, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t, int wanted, cublasLtMatmulHeuristicResult_t found[], int* count) {
    SIMULATED();
    if (wanted < 1 || found == nullptr || count == nullptr || !wrong(made, a, b, d).empty()) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    found[0] = {};
    found[0].state = CUBLAS_STATUS_SUCCESS;
    found[0].wavesCount = 1;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t made, const void* alpha,
                              const void* A, cublasLtMatrixLayout_t a, const void* B,
                              cublasLtMatrixLayout_t b, const void* beta, const void* C,
                              cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
    SIMULATED();
    if (handle == nullptr) {
        report_refusal(__func__, "CUBLAS_STATUS_NOT_INITIALIZED", "the handle is null");
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    std::string why = wrong(made, a, b, d);
    if (why.empty() && (alpha == nullptr || beta == nullptr)) why = "alpha or beta is null";
    if (!why.empty()) {
        report_refusal(__func__, "CUBLAS_STATUS_INVALID_VALUE", why);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    EmptyWork work;
    if (computes()) {
        if (c == nullptr) c = d;
        const Shape size = shape(d, CUBLAS_OP_N);
        const bool transa = number(made, CUBLASLT_MATMUL_DESC_TRANSA) != CUBLAS_OP_N;
        const auto scale = static_cast<cudaDataType>(number(made, CUBLASLT_MATMUL_DESC_SCALE_TYPE));
        Product product{.transa = transa,
                        .transb = number(made, CUBLASLT_MATMUL_DESC_TRANSB) != CUBLAS_OP_N,
                        .m = static_cast<std::int64_t>(size.rows),
                        .n = static_cast<std::int64_t>(size.columns),
                        .k = static_cast<std::int64_t>(shape(a, transa).columns),
                        .alpha = {alpha, scale},
                        .beta = {beta, scale},
                        .a = matrix_of(A, a),
                        .b = matrix_of(B, b),
                        .c = matrix_of(C, c),
                        .d = matrix_of(D, d),
                        .sums = sums_of(number(made, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE)),
                        .batch = std::max<std::int64_t>(
                            1, number(d, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT))};
        why = not_computed(product);
        for (const cublasLtMatrixLayout_t layout : {a, b, c, d}) {
            if (why.empty()) why = beyond(layout);
        }
        if (why.empty()) why = beyond(made);
        if (why.empty() && !(on_card(product.a, a) && on_card(product.b, b) &&
                             on_card(product.c, c) && on_card(product.d, d))) {
            report_refusal(__func__, "CUBLAS_STATUS_EXECUTION_FAILED",
                           "a matrix is not in memory that the card can reach");
            return CUBLAS_STATUS_EXECUTION_FAILED;
        }
        if (!why.empty()) {
            report_refusal(__func__, "CUBLAS_STATUS_NOT_SUPPORTED", why);
            return CUBLAS_STATUS_NOT_SUPPORTED;
        }
        const std::uint64_t mode = number(made, CUBLASLT_MATMUL_DESC_POINTER_MODE);
        std::array<std::array<unsigned char, 8>, 2> copies{};
        if (mode == CUBLASLT_POINTER_MODE_HOST) {  // read now
            const std::size_t bytes = scale == CUDA_R_64F ? 8 : scale == CUDA_R_16F ? 2 : 4;
            std::memcpy(copies[0].data(), alpha, bytes);
            std::memcpy(copies[1].data(), beta, bytes);
        }
        work.compute = [product, copies, mode]() mutable {
            if (mode == CUBLASLT_POINTER_MODE_HOST) {
                product.alpha.data = copies[0].data();
                product.beta.data = copies[1].data();
            }
            compute(product);
            return cudaSuccess;
        };
    }
    return submit(stream, std::move(work)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                          : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
