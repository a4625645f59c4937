#include "products.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "works.h"

namespace simulator {

namespace {

constexpr std::int64_t kRows = 256;  // of A at once: they stay in the cache
constexpr std::int64_t kExact = 16;  // products that are added before a sum of halves is rounded

template <typename To>
To read(const void* data, cudaDataType type, std::int64_t at) {
    switch (type) {
        case CUDA_R_8I: return static_cast<To>(static_cast<const std::int8_t*>(data)[at]);
        case CUDA_R_32I: return static_cast<To>(static_cast<const std::int32_t*>(data)[at]);
        case CUDA_R_16F: return static_cast<To>(static_cast<const _Float16*>(data)[at]);
        case CUDA_R_16BF: {
            const std::uint32_t bits = static_cast<const std::uint16_t*>(data)[at];
            return static_cast<To>(std::bit_cast<float>(bits << 16));
        }
        case CUDA_R_64F: return static_cast<To>(static_cast<const double*>(data)[at]);
        default: return static_cast<To>(static_cast<const float*>(data)[at]);
    }
}

std::uint16_t bfloat16(float value) {  // to the nearest, ties to even
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename From>
void write(void* data, cudaDataType type, std::int64_t at, From value) {
    switch (type) {
        case CUDA_R_32I: static_cast<std::int32_t*>(data)[at] = static_cast<std::int32_t>(value); return;
        case CUDA_R_16F: static_cast<_Float16*>(data)[at] = static_cast<_Float16>(value); return;
        case CUDA_R_16BF:
            static_cast<std::uint16_t*>(data)[at] = bfloat16(static_cast<float>(value));
            return;
        case CUDA_R_64F: static_cast<double*>(data)[at] = static_cast<double>(value); return;
        default: static_cast<float*>(data)[at] = static_cast<float>(value); return;
    }
}

float to_half(float value) { return static_cast<float>(static_cast<_Float16>(value)); }

// One of a batch.
const void* item(const Matrix& matrix, std::int64_t number, bool pointers) {
    if (pointers) return static_cast<const void* const*>(matrix.data)[number];
    return static_cast<const char*>(matrix.data) + number * matrix.stride * element_size(matrix.type);
}

// Sums are kept as Sum, in the order of k. Half: they are rounded to half precision.
template <typename Sum, bool kHalf>
void compute_as(const Product& p, std::int64_t number) {
    const auto alpha = read<Sum>(p.alpha.data, p.alpha.type, 0);
    const auto beta = read<Sum>(p.beta.data, p.beta.type, 0);
    const void* const a = item(p.a, number, p.pointers);
    const void* const b = item(p.b, number, p.pointers);
    const void* const c = item(p.c, number, p.pointers);
    void* const d = const_cast<void*>(item(p.d, number, p.pointers));
    std::vector<Sum> left(static_cast<std::size_t>(kRows * p.k)), sums(kRows), part(kRows);
    std::vector<Sum> right(static_cast<std::size_t>(p.k));
    for (std::int64_t row = 0; row < p.m; row += kRows) {
        const std::int64_t rows = std::min(kRows, p.m - row);
        for (std::int64_t l = 0; l < p.k; ++l) {
            for (std::int64_t i = 0; i < rows; ++i) {
                const std::int64_t at =
                    p.transa ? (row + i) * p.a.leading + l : l * p.a.leading + row + i;
                left[l * kRows + i] = read<Sum>(a, p.a.type, at);
            }
        }
        for (std::int64_t column = 0; column < p.n; ++column) {
            for (std::int64_t l = 0; l < p.k; ++l) {
                const std::int64_t at =
                    p.transb ? l * p.b.leading + column : column * p.b.leading + l;
                right[l] = read<Sum>(b, p.b.type, at);
            }
            std::ranges::fill(sums, Sum{});
            for (std::int64_t l = 0; l < p.k;) {
                const std::int64_t end = kHalf ? std::min(p.k, l + kExact) : p.k;
                Sum* const to = kHalf ? part.data() : sums.data();
                if (kHalf) std::ranges::fill(part, Sum{});
                for (; l < end; ++l) {
                    const Sum factor = right[l];
                    const Sum* const from = left.data() + l * kRows;
                    for (std::int64_t i = 0; i < rows; ++i) to[i] += from[i] * factor;
                }
                if constexpr (kHalf) {
                    for (std::int64_t i = 0; i < rows; ++i) sums[i] = to_half(sums[i] + part[i]);
                }
            }
            for (std::int64_t i = 0; i < rows; ++i) {
                Sum value = alpha * sums[i];
                // With beta 0, C may hold anything, also what is no number.
                if (beta != 0) {
                    value += beta * read<Sum>(c, p.c.type, column * p.c.leading + row + i);
                }
                write(d, p.d.type, column * p.d.leading + row + i, value);
            }
        }
    }
}

bool real(cudaDataType type) {
    return type == CUDA_R_8I || type == CUDA_R_32I || type == CUDA_R_16F || type == CUDA_R_16BF ||
           type == CUDA_R_32F || type == CUDA_R_64F;
}

// Solves op(A) x = x for one column, whose elements are `step` apart.
void solve(const Triangle& t, bool transposed, const float* a, float* x, std::int64_t order,
           std::int64_t step) {
    const bool forward = t.upper == transposed;
    for (std::int64_t turn = 0; turn < order; ++turn) {
        const std::int64_t i = forward ? turn : order - 1 - turn;
        float sum = x[i * step];
        for (std::int64_t j = forward ? 0 : i + 1; j < (forward ? i : order); ++j) {
            sum -= a[transposed ? i * t.lda + j : j * t.lda + i] * x[j * step];
        }
        x[i * step] = t.unit ? sum : sum / a[i * t.lda + i];
    }
}

}  // namespace

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

std::string not_computed(const Product& p) {
    for (const Matrix* const matrix : {&p.a, &p.b, &p.c, &p.d}) {
        if (!real(matrix->type)) return "not computed: the type " + std::to_string(matrix->type);
    }
    return "";
}

// The watch over works: what the product reads and writes.
void use_matrices(const Product& product) {
    const auto use = [&](const Matrix& matrix, std::int64_t rows, std::int64_t columns, bool writes) {
        const std::uint64_t size = element_size(matrix.type);
        for (std::int64_t number = 0; rows > 0 && number < product.batch; ++number) {
            const auto* const first = static_cast<const char*>(item(matrix, number, product.pointers));
            for (std::int64_t column = 0; column < columns; ++column) {
                uses(first + static_cast<std::uint64_t>(column * matrix.leading) * size,
                     static_cast<std::uint64_t>(rows) * size, writes);
            }
        }
    };
    use(product.a, product.transa ? product.k : product.m, product.transa ? product.m : product.k, false);
    use(product.b, product.transb ? product.n : product.k, product.transb ? product.k : product.n, false);
    use(product.d, product.m, product.n, true);
}

void compute(const Product& product) {
    if (watches()) use_matrices(product);
    for (std::int64_t number = 0; number < product.batch; ++number) {
        switch (product.sums) {
            case Sums::half: compute_as<float, true>(product, number); break;
            case Sums::single: compute_as<float, false>(product, number); break;
            case Sums::twice: compute_as<double, false>(product, number); break;
            case Sums::integer: compute_as<std::int32_t, false>(product, number); break;
        }
    }
}

void compute(const Triangle& t) {
    for (std::int64_t number = 0; number < t.batch; ++number) {
        const float* const a = t.a[number];
        float* const b = t.b[number];
        for (std::int64_t column = 0; column < t.n; ++column) {
            for (std::int64_t i = 0; i < t.m; ++i) b[column * t.ldb + i] *= *t.alpha;
        }
        if (t.left) {
            for (std::int64_t column = 0; column < t.n; ++column) {
                solve(t, t.transposed, a, b + column * t.ldb, t.m, 1);
            }
        } else {  // the rows of X solve the transposed system
            for (std::int64_t row = 0; row < t.m; ++row) {
                solve(t, !t.transposed, a, b + row, t.n, t.ldb);
            }
        }
    }
}

}  // namespace simulator
