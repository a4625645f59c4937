#include "llama.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "ggml.h"

namespace {

constexpr int kHead = 64;
constexpr const char* kWords[] = {"hello", "from", "a", "tree", "of", "our", "own"};
constexpr int kCount = sizeof kWords / sizeof *kWords;

bool on_host = false;

// Numbers that look random and are the same everywhere.
std::vector<float> noise(unsigned seed, int count) {
    std::vector<float> values(count);
    for (float& value : values) {
        seed = seed * 1664525U + 1013904223U;
        value = static_cast<float>(seed >> 16) / 65536.0F - 0.5F;
    }
    return values;
}

const ggml_backend& backend() {
    static const ggml_backend* const best = ggml_backend_best();
    return on_host ? *ggml_backend_host() : *best;
}

}  // namespace

std::string llama_device() { return backend().name; }

void llama_load(int gpu_layers) {
    on_host = gpu_layers == 0;
    const int offloaded = std::strcmp(backend().name, ggml_backend_host()->name) == 0 ? 0 : 1;
    std::fprintf(stderr, "load_tensors: offloaded %d/1 layers to GPU\n", offloaded);
}

std::string llama_next_word(const std::string& prompt) {
    unsigned seed = 1;
    for (const unsigned char c : prompt) seed = seed * 31 + c;
    const std::vector<float> query = noise(seed, kHead);
    const int count = static_cast<int>(prompt.size()) + 1;  // a key a token, and one to begin with
    const std::vector<float> keys = noise(1, kHead * count);
    const std::vector<float> values = noise(2, kHead * count);
    std::vector<float> out(kHead);
    if (!backend().attend(query.data(), keys.data(), values.data(), out.data(), kHead, count)) {
        return "";
    }
    return kWords[static_cast<int>(std::fabs(out[0]) * 1000) % kCount];
}
