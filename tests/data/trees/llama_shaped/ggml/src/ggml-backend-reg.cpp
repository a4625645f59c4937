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
