#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
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

}  // namespace

const ggml_backend* ggml_backend_cpu() {
    static const ggml_backend backend = {"CPU", attend};
    return &backend;
}
