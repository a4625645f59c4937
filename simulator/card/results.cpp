// What a few kernels store, in mode count: engines wait for it, and nothing else is computed.
//
// LMDeploy 0.18.0: TurboMind counts tokens and ends requests on the card
// (src/turbomind/kernels/sampling_kernels.cu, stop_criteria_kernels.cu). ExLlamaV3 1.6.5 asks whether
// all logits are finite (generator/job.py).
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

// turbomind::sampling: a block for each request. It takes token 0, as every engine here.
void sample(const Launch& launch, void* const* each) {
    auto* const tokens = argument<Number*>(each, 6);
    auto* const lengths = argument<Number*>(each, 7);
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

struct Storing {
    std::string_view start;  // of the kernel's mangled name
    void (*store)(const Launch& launch, void* const* each);
};
constexpr std::array kStoring = {
    Storing{"_ZN9turbomind8samplingI", sample},
    Storing{"_ZN9turbomind19length_criterion_v2E", finish},
};

// PyTorch's isfinite() ends with the product of two truth values, and all() is a reduction
// (aten/src/ATen/native/TensorCompare.cpp, cuda/ReduceLogicKernel.cu).
constexpr std::string_view kProduct = "MulFunctorIbE", kAll = "and_kernel_cuda";

struct Launched {
    std::string last, before;  // kernels
};
Launched& launched() {
    static auto* const all = new Launched;
    return *all;
}

}  // namespace

void store_results(const Launch& launch, void* const* each) {
    const Lock lock(mutex());
    const std::string name = kernel_name(launch.kernel);
    launched().before = std::exchange(launched().last, name);
    if (each == nullptr) return;
    for (const Storing& one : kStoring) {
        if (name.starts_with(one.start)) one.store(launch, each);
    }
}

bool result_is_true() {
    return launched().last.find(kAll) != std::string::npos &&
           launched().before.find(kProduct) != std::string::npos;
}

}  // namespace simulator
