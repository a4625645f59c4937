// What stands in ggml's test-backend-ops for texts of its own (kernel_test.py, REPLACED): random
// numbers that can be the same in each run, errors that are stated, guards between tensors.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <thread>
#include <vector>

// Two runs can be compared, launch by launch, where that is asked for.
static inline bool builder_repeatable() { return getenv("BUILDER_REPEATABLE") != nullptr; }

struct builder_random_device {
    using result_type = unsigned;
    static constexpr unsigned min() { return 0; }
    static constexpr unsigned max() { return ~0u; }
    unsigned operator()() {
        static unsigned seed = 0;
        return builder_repeatable() ? ++seed : std::random_device{}();
    }
};

// Each thread has numbers of its own.
static inline unsigned builder_threads() {
    return builder_repeatable() ? 1 : std::thread::hardware_concurrency();
}

// Whether a result is beyond ggml's limit.  ggml prints the error only then.
static inline bool builder_exceeds(double error, double limit) {
    if (std::isfinite(error)) printf("[error %.4g] ", error);
    return error > limit;
}

// ggml puts a tensor behind each tensor of a case and finds what a kernel writes there.  Numbers
// like those of the case hide what it reads there; infinity does not, and halves of it are NaNs.
template <class Tensor>
static inline void builder_guard(const std::vector<Tensor *> & sentinels) {
    for (Tensor * each : sentinels) {
        const std::vector<float> data(ggml_nelements(each), std::numeric_limits<float>::infinity());
        ggml_backend_tensor_set(each, data.data(), 0, ggml_nbytes(each));
    }
}
