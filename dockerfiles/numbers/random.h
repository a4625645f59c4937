// Random numbers of ggml's test-backend-ops that are the same in each run, where that is asked for:
// two runs can then be compared, launch by launch.
#pragma once

#include <cstdlib>
#include <random>
#include <thread>

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
