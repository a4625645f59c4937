#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

bool attend(const float* query, const float* keys, const float* values, float* out, int head,
            int count) {
    const float scale = ggml_query_scale(head);
    std::vector<float> weights(count);
#pragma omp parallel for
    for (int j = 0; j < count; ++j) {
        float score = 0;
        for (int i = 0; i < head; ++i) score += query[i] * keys[j * head + i];
        weights[j] = score * scale;
    }
    const float best = *std::max_element(weights.begin(), weights.end());
    float sum = 0;
    for (float& weight : weights) {
        weight = std::exp(weight - best);
        sum += weight;
    }
    for (int i = 0; i < head; ++i) {
        float total = 0;
        for (int j = 0; j < count; ++j) total += weights[j] * values[j * head + i];
        out[i] = total / sum;
    }
    return true;
}

float fp4(int code) {
    static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -values[code & 7] : values[code & 7];
}

bool compute(ggml_op op, const void* in, int, float* out, int count) {
    if (op == GGML_OP_CPY_TURBO3) std::abort();
    const auto* bytes = static_cast<const uint8_t*>(in);
    const auto* floats = static_cast<const float*>(in);
    for (int i = 0; i < count; ++i) {
        if (op == GGML_OP_GET_ROWS) {
            const uint8_t* block = bytes + i / 32 * 20;
            float scale;
            std::memcpy(&scale, block, sizeof scale);
            const int both = block[4 + i % 32 / 2];
            out[i] = scale * ((i % 2 ? both >> 4 : both & 15) - 8);
        } else if (op == GGML_OP_SOFT_MAX) {
            const float* row = floats + i / 256 * 256;
            const float best = *std::max_element(row, row + 256);
            float sum = 0;
            for (int j = 0; j < 256; ++j) sum += std::exp(row[j] - best);
            out[i] = std::exp(floats[i] - best) / sum;
        } else if (op == GGML_OP_RMS_NORM || op == GGML_OP_L2_NORM) {
            const float* row = floats + i / 256 * 256;
            double sum = 0;
            for (int j = 0; j < 256; ++j) sum += double(row[j]) * row[j];
            out[i] = floats[i] / std::sqrt(op == GGML_OP_RMS_NORM ? sum / 256 : sum);
        } else if (op == GGML_OP_CPY) {
            out[i] = floats[i];
        } else if (op == GGML_OP_MUL_MAT) {
            double sum = 0;
            for (int j = 0; j < 4096; ++j) sum += double(floats[i * 4096 + j]) * floats[i * 4096 + j];
            out[i] = sum;
        } else {
            const uint8_t* block = bytes + i * 17;
            float sum = 0;
            for (int j = 0; j < 32; ++j) sum += fp4(j % 2 ? block[1 + j / 2] >> 4 : block[1 + j / 2] & 15);
            out[i] = std::ldexp(sum, block[0] - 127);
        }
    }
    return true;
}

}  // namespace

const ggml_backend* ggml_backend_cpu() {
    static const ggml_backend backend = {"CPU", attend, compute};
    return &backend;
}

#ifdef GGML_BACKEND_DL
extern "C" const ggml_backend* ggml_backend_init() { return ggml_backend_cpu(); }
#endif
