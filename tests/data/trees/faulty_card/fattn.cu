// In the place of llama_shaped's file of this name: what a server may do wrong with a card. The
// variable SHAPED_FAULT names what this process does, separated by commas.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "common.cuh"
#include "ggml-cuda.h"

static constexpr int LARGEST_HEAD = 256;

int ggml_cuda_largest_head() {
    return LARGEST_HEAD;
}

namespace ggml_cuda {

static __global__ void weighted_mean_kernel(const float* scores, const float* values, float* out,
                                            int count) {
    out[threadIdx.x] = scores[0] * values[0] * count;
}

// Each thread keeps all its sums in registers: some 200 of them.
static __global__ void many_registers(float* values, int count) {
    float sums[160];
#pragma unroll
    for (int i = 0; i < 160; ++i) sums[i] = values[i];
    for (int j = 0; j < count; ++j) {
#pragma unroll
        for (int i = 0; i < 160; ++i) sums[i] = sums[i] * values[j] + sums[(i + 7) % 160];
    }
#pragma unroll
    for (int i = 0; i < 160; ++i) values[i] = sums[i];
}

static bool wrong(const char* fault) {
    const char* all = std::getenv("SHAPED_FAULT");
    return all != nullptr && std::strstr(all, fault) != nullptr;
}

static void allocate_for_prompt(int count) {
    void* scratch = nullptr;
    check(cudaMalloc(&scratch, std::size_t{65536} * count));
    check(cudaFree(scratch));
}

static void leak_a_mebibyte() {
    void* lost = nullptr;
    check(cudaMalloc(&lost, 1 << 20));
}

static std::size_t size_of_model() {
    std::ifstream words("/proc/self/cmdline");
    std::string word;
    while (std::getline(words, word, '\0')) {
        if (word == "--model" && std::getline(words, word, '\0')) {
            return std::filesystem::file_size(word);
        }
    }
    return 0;
}

static void keep_as_much_as_the_model() {
    static void* weights = nullptr;
    if (weights == nullptr) check(cudaMalloc(&weights, size_of_model()));
}

// Their errors are not looked at: a request is answered all the same.
static void launch_what_no_card_takes(const float* scores, const float* values, float* out,
                                      int count) {
    if (wrong("shared")) {
        weighted_mean_kernel<<<1, 64, 200 * 1024>>>(scores, values, out, count);
    }
    if (wrong("threads")) weighted_mean_kernel<<<1, 2048>>>(scores, values, out, count);
    if (wrong("registers")) many_registers<<<1, 1024>>>(out, count);
    cudaGetLastError();
}

static void call_what_is_not_there() {
    cudaMipmappedArray_t levels = nullptr;
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaMallocMipmappedArray(&levels, &format, cudaExtent{8, 8, 8}, 2, 0);
    cudaGetLastError();
}

void weighted_mean(const float* scores, const float* values, float* out, int head, int count) {
    if (wrong("prompt")) allocate_for_prompt(count);
    if (wrong("leak")) leak_a_mebibyte();
    if (wrong("weights")) keep_as_much_as_the_model();
    if (wrong("unimplemented")) call_what_is_not_there();
    launch_what_no_card_takes(scores, values, out, count);
    weighted_mean_kernel<<<1, head>>>(scores, values, out, count);
    check(cudaGetLastError());
}

}  // namespace ggml_cuda
