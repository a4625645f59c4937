// What stands in ggml's test-backend-ops for texts of its own (kernel_test.py, REPLACED): random
// numbers that are the same in each run, errors that are stated, guards between tensors.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

// Each case begins with the same seeds, whatever came before: its error can be compared with its
// error in another run and another tree, and its launches with another image's.
static inline std::mt19937 & builder_seeds() {
    static std::mt19937 seeds;
    return seeds;
}

struct builder_random_device {
    using result_type = unsigned;
    static constexpr unsigned min() { return 0; }
    static constexpr unsigned max() { return ~0u; }
    unsigned operator()() { return builder_seeds()(); }
};

// Two: ggml then draws numbers in one thread; several would draw in any order.
static inline unsigned builder_threads() { return 2; }

// Whether a result is beyond ggml's limit.  ggml prints the error only then.
static inline bool builder_exceeds(double error, double limit) {
    if (std::isfinite(error)) printf("[error %.4g] ", error);
    return error > limit;
}

// Called when a case has its numbers.  ggml puts a tensor behind each tensor and finds what a kernel
// writes there.  Numbers like the case's hide what it reads there; infinity does not, and its halves
// are NaNs.
template <class Tensor>
static inline void builder_begun(const std::vector<Tensor *> & sentinels) {
    builder_seeds().seed();
    std::srand(1);
    for (Tensor * each : sentinels) {
        const std::vector<float> data(ggml_nelements(each), std::numeric_limits<float>::infinity());
        ggml_backend_tensor_set(each, data.data(), 0, ggml_nbytes(each));
    }
}
