#include <chrono>
#include <cstdio>

#include "arg.h"
#include "llama.h"

int main(int argc, char** argv) {
    common_params params;
    if (const auto status = common_params_parse(argc, argv, params)) return *status;
    constexpr int words = 100;
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < words; ++i) {
        if (llama_next_word(params.prompt).empty()) return 1;
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
    std::printf("%s: %.0f t/s\n", llama_device().c_str(), words / taken.count());
    return 0;
}
