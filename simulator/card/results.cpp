// What a few kernels store, in mode count: engines wait for it, and nothing else is computed.
//
// LMDeploy 0.18.0: TurboMind counts tokens and ends requests on the card
// (src/turbomind/kernels/sampling_kernels.cu, stop_criteria_kernels.cu). ExLlamaV3 1.6.5 asks whether
// all logits are finite (generator/job.py). Not in graphs, and not for packed arguments, where the
// arguments are not known.
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "internal.h"

namespace simulator {

namespace {

using Number = std::int32_t;

template <typename Value>
Value argument(void* const* each, int number) {
    Value value;
    std::memcpy(&value, each[number], sizeof value);
    return value;
}

void keep_number(Number* on_card, Number value) {
    std::vector<unsigned char> bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    keep_result(on_card, std::move(bytes));
}

// turbomind::sampling: a block for each request. A card would take the likeliest token, here it is 0.
void sample(const Launch& launch, void* const* each) {
    auto* const tokens = argument<Number*>(each, 6);
    auto* const lengths = argument<Number*>(each, 7);
    if (lengths == nullptr) return;
    for (unsigned request = 0; request < launch.grid.x; ++request) {
        keep_number(tokens + request, 0);
        keep_number(lengths + request, kept_number(lengths + request) + 1);
    }
}

// turbomind::length_criterion_v2: a request of its full length is finished.
void finish(const Launch&, void* const* each) {
    auto* const finished = argument<unsigned char*>(each, 0);
    const auto* const lengths = argument<const Number*>(each, 1);
    const auto* const limits = argument<const Number*>(each, 2);
    for (Number request = 0; request < argument<Number>(each, 3); ++request) {
        if (kept_number(lengths + request) >= kept_number(limits + request)) {
            keep_result(finished + request, {1});
        }
    }
}

// Whole names: the wheel's. Another release may have other parameters, and stores nothing then.
struct Storing {
    std::string_view kernel;
    void (*store)(const Launch& launch, void* const* each);
};
constexpr std::array kStoring = {
    Storing{"_ZN9turbomind8samplingIfLi256EEEvPKT_iPKiS5_P17curandStateXORWOWS5_PiS8_PS1_S8_S8_",
            sample},
    Storing{"_ZN9turbomind19length_criterion_v2EPbPKiS2_i", finish},
};

// PyTorch's isfinite() ends with the product of two truth values, and all() is a reduction
// (aten/src/ATen/native/TensorCompare.cpp, cuda/ReduceLogicKernel.cu).
constexpr std::string_view kProduct = "MulFunctorIbE", kAll = "15and_kernel_cuda";
thread_local bool product = false, all_finite = false;

}  // namespace

void note_kernel(std::string_view name) {
    all_finite = product && name.find(kAll) != std::string_view::npos;
    product = name.find(kProduct) != std::string_view::npos;
}

bool take_all_finite() { return std::exchange(all_finite, false); }

void store_results(const Launch& launch, void* const* each) {
    const std::string_view name = kernel_name(launch.kernel);
    for (const Storing& one : kStoring) {
        if (name != one.kernel || each == nullptr) continue;
        const Lock lock(mutex());
        one.store(launch, each);
    }
}

}  // namespace simulator
