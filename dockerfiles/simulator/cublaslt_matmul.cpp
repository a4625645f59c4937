// cuBLASLt: descriptors hold what the program sets; products are checked and not computed.
#include <cublasLt.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

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
                              const void*, cublasLtMatrixLayout_t a, const void*,
                              cublasLtMatrixLayout_t b, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t d,
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
    return submit(stream, EmptyWork{}) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                      : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
