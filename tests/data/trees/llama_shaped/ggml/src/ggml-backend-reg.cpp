#ifdef GGML_BACKEND_DL

#include <dlfcn.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "ggml.h"

namespace fs = std::filesystem;

namespace {

using init_function = const ggml_backend* (*)();
using number_function = int (*)();

struct loaded {
    void* library = nullptr;
    const ggml_backend* backend = nullptr;
};

template <typename Function>
Function find(void* library, const char* name) {
    return reinterpret_cast<Function>(library ? dlsym(library, name) : nullptr);
}

// libggml-NAME-*.so beside the program with the best score, else libggml-NAME.so; without a word
// where none can be loaded.
loaded load_best(const std::string& name) {
    const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
    const std::string prefix = "libggml-" + name;
    fs::path best = folder / (prefix + ".so");
    int best_score = 0;
    for (const auto& each : fs::directory_iterator(folder)) {
        const std::string file = each.path().filename().string();
        if (file.rfind(prefix + "-", 0) != 0 || each.path().extension() != ".so") continue;
        void* const library = dlopen(each.path().c_str(), RTLD_NOW | RTLD_LOCAL);
        const auto score = find<number_function>(library, "ggml_backend_score");
        if (score && score() > best_score) {
            best_score = score();
            best = each.path();
        }
    }
    loaded found;
    found.library = dlopen(best.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (const auto init = find<init_function>(found.library, "ggml_backend_init")) {
        found.backend = init();
        if (found.backend)
            std::fprintf(stderr, "load_backend: loaded %s backend from %s\n", found.backend->name,
                         best.c_str());
    }
    return found;
}

const loaded& cuda() {
    static const loaded found = load_best("cuda");
    return found;
}

}  // namespace

const ggml_backend* ggml_backend_host() {
    static const loaded found = load_best("cpu");
    return found.backend;
}

const ggml_backend* ggml_backend_best() {
    return cuda().backend ? cuda().backend : ggml_backend_host();
}

int ggml_backend_largest_head() {
    const auto largest = find<number_function>(cuda().library, "ggml_cuda_largest_head");
    return largest ? largest() : 0;
}

#else

#include "ggml-cpu.h"

#ifdef GGML_USE_CUDA
#include "ggml-cuda.h"
#endif

const ggml_backend* ggml_backend_best() {
#ifdef GGML_USE_CUDA
    if (const ggml_backend* gpu = ggml_backend_cuda()) return gpu;
#endif
    return ggml_backend_cpu();
}

const ggml_backend* ggml_backend_host() {
    return ggml_backend_cpu();
}

int ggml_backend_largest_head() {
#ifdef GGML_USE_CUDA
    return ggml_cuda_largest_head();
#else
    return 0;
#endif
}

#endif
